"""What a user gets wrong ends in one line that names it, before any work starts."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval import suite
from eval.data.benchmarks import BY_KEY
from eval.options import Options, parse_run_all
from eval.plan import evaluations
from eval.plan.evaluations import plan_evaluations
from eval.plan.models import read_models
from modeling_aligned_llava.errors import UserError
from research import vision_check
from tests import REPOSITORY
from tests.benchmark_stand_in import pope, write_dataset
from tests.clone import changed_copy
from tests.modeling_aligned_llava.tiny_families import write_checkpoint


def test_suite_names_the_culprit(tiny_llava, tmp_path, refusal):
    def message(*models, data=tmp_path, more=()):
        return refusal(suite.main, "--run", tmp_path / "run", "--data", data, *more, "--models", *models)

    good = f"baseline={tiny_llava}"
    assert "no checkpoint" in message("baseline=/nowhere") and "/nowhere" in message("baseline=/nowhere")
    assert "expected NAME=PATH" in message("baseline")
    assert "expected NAME=PATH" in message(f"../up={tiny_llava}")
    assert "given twice" in message(good, good)
    assert "no such folder" in message(good, data=tmp_path / "absent")
    assert "benchmark mmbench: no folder" in message(good)
    write_dataset(tmp_path / "lmms-lab-encoder/POPE", {"default": {"test": pope(2)}})
    assert "--baseline norm" in message(good, more=["--baseline", "norm", "--tasks", "pope"])
    assert not (tmp_path / "run").exists()


@pytest.fixture
def checkpoint(tiny_llava, tmp_path):
    """`checkpoint(file, **entries)` -> a copy of the tiny LLaVA with these entries in one of its JSON files."""

    return partial(changed_copy, tiny_llava, tmp_path / "changed")


def test_suite_refuses_what_cannot_be_served(checkpoint, tiny_llava, mirror_root, tmp_path, refusal):
    """Before any work starts, with a model beside it that can be served."""

    def message(folder, *options):
        models = ["--models", f"good={tiny_llava}", f"bad={folder}"]
        return refusal(suite.main, "--run", tmp_path / "run", "--data", mirror_root, *options, *models)

    foreign = checkpoint("config.json", model_type="unheard_of", auto_map={"AutoConfig": "code.Config"})
    custom = f"--models bad: unheard_of is custom code: read it in {foreign}, then add --trust-remote-code"
    assert message(foreign) == custom
    assert "--models bad: cannot load" in message(foreign, "--trust-remote-code")  # there is no code.py
    shutil.rmtree(foreign)

    (checkpoint("config.json") / "processor_config.json").unlink()
    assert message(foreign).startswith("--models bad: cannot load")

    paligemma = write_checkpoint("paligemma", tmp_path / "paligemma")
    text = "--models bad: paligemma answers no question without an image"
    assert message(paligemma) == (
        f"{text} (scienceqa, hellaswag, mmlu): "
        "evaluate it alone with --tasks mmbench mmstar pope seedbench_2_plus ocrbench ai2d"
    )
    assert message(paligemma, "--tasks", "mmlu") == f"{text} (mmlu): leave it out"
    assert not (tmp_path / "run").exists()
    options = Options(run=tmp_path / "run", data=mirror_root, tasks=["pope"])
    assert plan_evaluations(options, read_models([f"a={paligemma}"], None, None))


def test_a_processor_without_an_image_token_serves_text_alone(tiny_llava, tmp_path, monkeypatch):
    options = Options(run=tmp_path, data=tmp_path)
    monkeypatch.setattr(evaluations.AutoProcessor, "from_pretrained", lambda *arguments, **options: SimpleNamespace())
    models = read_models([f"bad={tiny_llava}"], None, None)
    evaluations.check_servable(models["bad"], [BY_KEY["mmlu"]], options)
    with pytest.raises(UserError, match="--models bad: llava cannot be served: its processor names no image token"):
        evaluations.check_servable(models["bad"], [BY_KEY["mmlu"], BY_KEY["pope"]], options)


def test_vision_check_needs_an_evaluated_run(tmp_path, refusal):
    assert "run.json" in refusal(vision_check.main, "--run", tmp_path)
    (tmp_path / "run.json").write_text('{"models": {"norm": {}}}')
    assert "--method baseline" in refusal(vision_check.main, "--run", tmp_path)


FINETUNE = ["--finetune", "mine", "--training-data", "rows.json"]


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (["--methods", "baseline", "nrom"], "unknown method nrom"),
        (["--seeds", "1", "2", "1"], "--seeds: one is given twice"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--run", "../elsewhere"], "--run ../elsewhere"),
        (["--baseline", "norm-relative"], "--baseline norm-relative"),
        (["--models", "a=/nowhere", "--data", "/"], "no checkpoint (config.json) in /nowhere"),
        (["--models", "a=/nowhere", "--data", "/nowhere"], "--data /nowhere: no such folder"),
        (["--models", "a=/nowhere"], "--models needs --data"),
        (["--data", "/"], "--data needs --models"),
        (["--backbone", "nowhere"], "--backbone nowhere: configuration/train has"),
        (["--backbone", "llama-3.2-3b"], "--backbone llama-3.2-3b needs --data"),
        (
            ["--models", "a=/nowhere", "--data", "/", "--backbone", "tinyworld"],
            "--methods, --seeds, --backbone and --training-data train",
        ),
        (["--preflight"], "--preflight needs --finetune MODEL"),
        (["--finetune", "mine"], "--finetune needs --training-data FILE"),
        (FINETUNE, "rows.json names image files: give their folder, --images DIR"),
        ([*FINETUNE, "--images", "/nowhere"], "--images /nowhere: no such folder"),
        ([*FINETUNE, "--images", "/", "--recipe", "/nowhere"], "--recipe /nowhere: no such file"),
        ([*FINETUNE, "--images", "/", "--methods", "nrom"], "unknown method nrom"),
        ([*FINETUNE, "--backbone", "tinyworld"], "--backbone trains from backbones"),
        (["--limit", "0"], "argument --limit: 0 is not a number from 1"),
    ],
)
def test_run_all_names_the_culprit(options, culprit):
    command = ["bash", str(REPOSITORY / "eval/run_all.sh"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)  # noqa: S603
    assert done.returncode != 0 and culprit in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


OPTIONS = "--dtype bfloat16 --batch-size 3 --jobs 1 --tasks pope ai2d --limit 2 --no-shared-prefix --trust-remote-code"


def test_run_all_gives_every_option_its_place(tiny_llava, tmp_path):
    models = ["--models", f"a={tiny_llava}", "--data", str(tmp_path)]
    args = parse_run_all(["--run", "x", *models, *OPTIONS.split()])
    options = Options.of(args)
    assert (options.run, options.data, options.folder) == (Path("results/x"), tmp_path, Path("results/x/limit-2"))
    assert (options.dtype, options.batch_size, options.jobs, options.limit) == ("bfloat16", 3, 1, 2)
    assert (options.tasks, options.no_shared_prefix, options.trust_remote_code) == (["pope", "ai2d"], True, True)
    args = parse_run_all(["--backbone", "smollm2-135m"])
    assert args.run == Path("results/smollm2-135m") and args.seeds == [42]
    assert args.methods == ["baseline", "norm", "norm-gwc"] and args.baseline == "baseline"


def test_run_all_checks_its_options_with_the_standard_library_alone():
    program = "import sys; sys.path.append('.'); from eval.options import parse_run_all as p; p(['--methods', 'norm'])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], cwd=REPOSITORY, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
