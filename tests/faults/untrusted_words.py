"""Words from elsewhere: on command lines, in names and answers, in requests; and tokens, which stay where they are."""

import html.parser
import json
import os
import random
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from unittest import mock

from eval.data.benchmarks import BY_KEY
from eval.report.finished_run import FinishedRun
from eval.report.page.report import report
from eval.report.tables.table4 import markdown
from tests import REPOSITORY
from tests.benchmark_stand_in import pope, write_dataset, write_llava
from tests.eval.report.stand_in import write_run
from tests.faults.refusals import refused
from tests.faults.tiny import tiny
from tests.faults.untrusted_files import nothing_runs
from train.arguments.parse import parse_arguments


NAME = '"><img src=x onerror=document.title=1337>'
ANSWER = f"<script>document.title=1337</script>{NAME}"
SECRETS = {"HF_TOKEN": "hf_" + "s3cr3t" * 6, "OPENAI_API_KEY": "sk-" + "0p3n" * 6, "WANDB_API_KEY": "w4ndb" * 8}


def shells(rng: random.Random, folder: Path) -> dict[str, int]:
    """Words for the scripts are words, whatever they contain. Python is a stand-in that writes down its arguments."""
    clone, ran, given = folder / "clone", folder / "ran", folder / "arguments"
    write_scripts(clone)
    hostile = [f"$(touch {ran})", f"`touch {ran}`", f"a; touch {ran} #", f"a' && touch {ran} '", f'a" | touch {ran} "']
    hostile += [f"a[$(touch {ran})]", "a  b", "*", "~", "a\nb", "é"]
    environment = os.environ | {"ARGUMENTS": str(given)}
    tried = 0
    for word in hostile:
        data = folder / "data" / word.replace("/", "_")
        data.mkdir(parents=True)
        (data / "config.json").touch()
        for command in commands(word, str(data)):
            given.unlink(missing_ok=True)
            with nothing_runs(ran):
                done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)  # noqa: S603
            words = given.read_text().split("\0") if given.exists() else []
            assert done.returncode or any(word in each for each in words), f"{command} lost {word!r}: {words}"
            tried += 1
    return {"commands": tried}


def write_scripts(clone: Path) -> None:
    """The scripts of this repository, with a Python that writes down its arguments and ends."""
    for name in ("eval", "train", "configuration"):
        shutil.copytree(REPOSITORY / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "Makefile", clone)
    python = clone / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\nprintf "%s\\0" "$@" >>"$ARGUMENTS"\n')
    python.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", ".venv/installed"):  # in this order, or make would install
        (clone / name).touch()


def commands(word: str, folder: str) -> list[list[str]]:
    """Commands of our scripts with a word from elsewhere in each place that takes one."""
    evaluate, train = ["bash", "eval/run_all.sh"], ["bash", "train/run.sh", "--backbone", "tinyworld"]
    both = [*train, "--method", "norm"]
    return [
        *([*evaluate, option, word] for option in ("--run", "--methods", "--seeds", "--backbone", "--baseline")),
        [*evaluate, "--models", f"one={folder}", "--data", folder, "--run", "x", "--tasks", word],
        [*evaluate, "--limit", word, "--jobs", word],
        *([*both, option, word] for option in ("--seed", "--output-root", "--data-stage1", "--vision-tower")),
        [*both, "--output-root", folder, "--", "--run_name", word],
        [*train, "--method", word],
        ["bash", "train/run.sh", "--backbone", word, "--method", "norm"],
        ["make", "tables", f"RUN={word}".replace("$", "$$")],
    ]


class Elements(html.parser.HTMLParser):
    """Counts scripts, and attributes that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = self.handlers = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += any(name.startswith("on") or (value or "").startswith("javascript:") for name, value in attrs)


def hostile_run(folder: Path, checkpoint: Path | None) -> Path:
    """A finished run whose folder, models, answers and reasons hold tags."""
    run = write_run(folder / NAME, checkpoint, names=("baseline", "norm"), norm=f"ValueError: {ANSWER}")
    for name in ("scores.json", "run.json"):
        text = (run / name).read_text().replace('"norm"', json.dumps(NAME))
        (run / name).write_text(text.replace('"toy"', json.dumps(f"toy {NAME}")))
    for sort in ("harness", "checkpoints"):
        (run / sort / "norm").rename(run / sort / NAME)
    for log in run.rglob("*samples*.jsonl"):
        log.write_text(log.read_text().replace("Question 0?", json.dumps(ANSWER)[1:-1]))
    return run


def pages(rng: random.Random, folder: Path) -> dict[str, int]:
    """The report and the tables of a card show names, answers and reasons as text."""
    run = FinishedRun.read(hostile_run(folder, tiny().checkpoint))
    for text, own_scripts in ((report(run, {}), 1), (markdown(run.rows), 0)):
        parser = Elements()
        parser.feed(text)
        assert (parser.scripts, parser.handlers) == (own_scripts, 0), "a page runs what a name holds"
    return {"pages": 2}


def tokens(rng: random.Random, folder: Path) -> dict[str, int]:
    """No file and no line of a training, an evaluation and a report has a token of the environment in it."""
    root, run, model = folder / "mirror", folder / "run", write_llava(folder / "model")
    write_dataset(root / BY_KEY["pope"].folder, {"default": {"test": pope(4)}})
    environment = os.environ | SECRETS | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    environment |= {"HF_HOME": str(folder / "home")}
    said = ""
    for words in (
        ["train.sft", *tiny().stage2(folder)],
        ["eval.run_all", "--run", run, "--models", f"one={model}", "--data", root, "--tasks", "pope", "--jobs", "1"],
    ):
        command = [sys.executable, "-m", *map(str, words)]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr[-1500:]
        said += done.stdout + done.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"training_complete.json", "run.json", "report.html"} <= {path.name for path in files}
    for name, secret in SECRETS.items():
        assert secret not in said, f"{name} was printed"
        found = [path for path in files if secret.encode() in path.read_bytes()]
        assert not found, f"{name} is in {found}"
    with refused("hub_token"):
        parse_arguments([*tiny().stage2(folder), "--hub_token", SECRETS["HF_TOKEN"]])
    return {"files": len(files)}


def demo(rng: random.Random, folder: Path) -> dict[str, int]:
    """The demo listens on this machine only, limits uploads, and serves no other file and no other page."""
    import gradio

    from eval.demo.app import build, serve
    from eval.demo.models import load_models

    models = load_models({"tiny": str(write_llava(folder / "model"))}, "cpu")
    secret = folder / "secret.txt"
    secret.write_text("secret")
    foreign = {"GRADIO_SHARE": "True", "GRADIO_MCP_SERVER": "True", "GRADIO_ANALYTICS_ENABLED": "False"}
    served = build(models, [], 4)
    with mock.patch.dict(os.environ, foreign), mock.patch.object(gradio.Blocks, "block_thread"):
        serve(served)
    try:
        address = served.local_url.rstrip("/")
        assert served.server_name == "127.0.0.1" and served.share_url is None
        for path in (secret, REPOSITORY / "pyproject.toml", Path("/etc/passwd"), Path("../../../etc/passwd")):
            assert _status(urllib.request.Request(f"{address}/gradio_api/file={path}")) in (403, 404)  # noqa: S310
        assert _status(_upload(address, 53_000_000)) == 413
        assert _status(_upload(address, 1_000)) == 200
        elsewhere = urllib.request.Request(f"{address}/config", headers={"Origin": "https://evil.example"})  # noqa: S310
        with urllib.request.urlopen(elsewhere, timeout=30) as answer:  # noqa: S310
            assert answer.headers.get("Access-Control-Allow-Origin") not in ("*", "https://evil.example")
    finally:
        served.close()
    return {"doors": 7}


def _upload(address: str, size: int) -> urllib.request.Request:
    border = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = border + bytes(size) + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return urllib.request.Request(f"{address}/gradio_api/upload", data=body, headers=headers)  # noqa: S310


def _status(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
