"""`eval/run_all.sh --finetune`: profile, training, benchmarks, and the answer; killed and started again."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from datasets import Dataset, Image

from tests import REPOSITORY
from tests.together import kill_all
from tests.train.conftest import write_data


RUN = REPOSITORY / "results/test-finetune"
RECIPE = """
output_dir: none
max_length: 300
learning_rates: {language: 1.0e-3, projector: 1.0e-3, norm: 1.0e-3}
frozen: [vision]
max_steps: 4
global_batch_size: 4
per_device_train_batch_size: 4
bf16: false
dataloader_pin_memory: false
logging_steps: 1
save_steps: 2
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REPOSITORY / ".venv/installed").exists(), reason="run_all.sh would install .venv first"),
]


@pytest.fixture
def command(tmp_path, tiny_llava):
    """The command line; the run's folder is removed before and after."""
    data = tmp_path / "data"
    data.mkdir()
    write_data(data)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    shutil.rmtree(RUN, ignore_errors=True)
    settings = (
        f"--training-data {data}/stage2.json --images {data}/images --held-out 6 --recipe {tmp_path}/recipe.yaml"
    )
    words = f"bash eval/run_all.sh --run {RUN.name} --finetune {tiny_llava} --methods baseline norm {settings}"
    yield words.split()
    shutil.rmtree(RUN, ignore_errors=True)


def embedded(data):
    """The rows with their images inside, as datasets on the Hub have them."""
    rows = json.loads((data / "stage2.json").read_text())
    for row in rows:
        row["image"] = (
            {"bytes": (data / "images" / row["image"]).read_bytes(), "path": None} if row.get("image") else None
        )
    Dataset.from_list(rows).cast_column("image", Image()).to_parquet(data / "rows.parquet")
    return data / "rows.parquet"


def run(command, **variables):
    env = os.environ | variables
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=900)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_and_started_again_it_ends_with_the_answer(command, mirror_root, tmp_path):
    command += ["--data", str(mirror_root), "--tasks", "pope", "--seeds", "1"]
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
        while not list(RUN.glob("checkpoints/*/finetuned/checkpoint-*/checkpoint_complete.json")):
            assert first.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        kill_all(first)
    said = run(command)
    lines = said.partition("== the answer\n")[2].partition("\n\n")[0].splitlines()
    assert 5 <= len(lines) <= 8 and lines[0].startswith("Are the visual tokens of ")
    assert re.match(r"  norm: needs more seeds; (high|low)er by \S+ points \[\S+, \S+\] over the questions", lines[2])
    assert (RUN / "answer.md").read_text().splitlines() == lines
    page = (RUN / "report.html").read_text()
    assert page.index("The answer") < page.index("Are the visual tokens of ") < page.index("Measured in this run")
    scores = json.loads((RUN / "scores.json").read_text())
    assert {row["method"] for row in scores if row["source"] == "measured"} == {"start", "baseline", "norm"}
    kept = {path: path.stat().st_mtime_ns for path in RUN.glob("checkpoints/*/finetuned/*")}
    assert run(command).partition("== the answer\n")[2].partition("\n\n")[0].splitlines() == lines
    assert {path: path.stat().st_mtime_ns for path in RUN.glob("checkpoints/*/finetuned/*")} == kept


def test_without_benchmarks_it_rests_on_the_held_out_loss(command, tmp_path):
    """Each training has two processes, and rows embed their images."""
    at = command.index("--images")
    command[at - 1 : at + 2] = [str(embedded(tmp_path / "data"))]
    (recipe,) = [Path(word) for word in command if word.endswith("recipe.yaml")]
    recipe.write_text(recipe.read_text().replace("device_train_batch_size: 4", "device_train_batch_size: 2"))
    said = run([*command, "--seeds", "1", "2"], LAUNCH="torchrun --standalone --nproc_per_node 2")
    assert "global batch 4 = 2 rows x 2 processes" in (RUN / "logs/train.norm.2.log").read_text()
    assert "by held-out loss, 2 seeds:" in said and "Not covered: benchmarks (give --data)" in said
    assert re.search(r"norm: (better|worse|not shown); loss (high|low)er by \S+ nats \[\S+, \S+\], p [=<] \S+\.", said)
    page = (RUN / "report.html").read_text()
    assert page.index("The answer") < page.index("Are the visual tokens of ") < page.index("L2 norm of the input")
    assert "Measured in this run" not in page and "Loss, finetuned" in page and "not measured" not in page
