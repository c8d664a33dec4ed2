"""A small comparison in a clone: data, both stages, evaluation and tables as five commands that can be killed."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from modeling_aligned_llava.loading.build_once import build_once
from modeling_aligned_llava.loading.files import read_json, write_json
from tests.clone import clone_repository


RUN = Path("results/small")
PYTHON = ".venv/bin/python"
STEPS, SAVED_EVERY = 120, 20
TASKS = ("pope", "ocrbench", "hellaswag")
SAME_BYTES = {".safetensors", ".json", ".jsonl", ".parquet", ".arrow", ".png", ".md", ".csv", ".tex", ".svg"}
# They tell when and how fast, not what.
NOT_RESULTS = re.compile(r"(^|/)(logs|answers|harness|\.[^/]*lock)(/|$)|(run|settings|result)\.json$|report\.html$")


@dataclass(frozen=True)
class Phase:
    """A command and what it makes in the run's folder."""

    name: str
    command: tuple[str, ...]
    made: tuple[str, ...]


def _stage(number: int) -> Phase:
    command = f"bash train/run.sh --backbone tinyworld --method norm-gwc --stage stage{number} --output-root {RUN} --"
    command += f" --max_steps {STEPS} --save_steps {SAVED_EVERY}"
    return Phase(f"stage{number}", tuple(command.split()), (f"checkpoints/norm-gwc/stage{number}",))


def _evaluation() -> Phase:
    command = f"{PYTHON} -m eval.suite --run {RUN} --models norm-gwc={RUN}/checkpoints/norm-gwc/stage2"
    command += f" --data {RUN}/data/mirrors --max-new-tokens 16 --tasks {' '.join(TASKS)}"
    return Phase("evaluation", tuple(command.split()), ("logs", "answers", "harness", "run.json", "scores.json"))


PHASES = (
    Phase("data", (PYTHON, "-m", "tinyworld.build", f"{RUN}/data"), ("data",)),
    _stage(1),
    _stage(2),
    _evaluation(),
    Phase("tables", (PYTHON, "-m", "eval.report.tables", str(RUN)), ("tables", "figures")),
)


def environment(home: Path) -> dict[str, str]:
    """This process's variables with `home`, made if it is not there, as home and for all caches."""
    home.mkdir(parents=True, exist_ok=True)
    homes = {"HOME": str(home), "HF_HOME": str(home / "huggingface"), "XDG_CACHE_HOME": str(home / "cache")}
    return os.environ | homes | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def start(phase: Phase, clone: Path, home: Path) -> subprocess.Popen[str]:
    """Start the phase as the leader of a process group; its output is appended to `output.txt` beside the clone."""
    with clone.with_name("output.txt").open("a", encoding="utf-8") as file:
        return subprocess.Popen(  # noqa: S603
            phase.command, cwd=clone, env=environment(home), text=True, stdout=file, stderr=file, process_group=0
        )


def finish(phase: Phase, clone: Path, home: Path) -> None:
    """Run the phase to its end.

    Raises:
        AssertionError: it failed; the message has its last lines.
    """
    code = start(phase, clone, home).wait()
    assert code == 0, f"{phase.name} ended with {code}: {last_lines(clone)}"


def output(clone: Path) -> str:
    """What the phases have said so far."""
    return clone.with_name("output.txt").read_text("utf-8")


def last_lines(clone: Path) -> str:
    """The end of it."""
    return "\n".join(output(clone).splitlines()[-5:])


def straight_run(case: Path) -> Path:
    """The clone in which every phase ran once without a fault. Made by the first case of all campaigns that asks.

    Args:
        case: the case's own folder, CAMPAIGNS/CAMPAIGN/CASE.
    """

    def run(unfinished: Path) -> None:
        clone_repository(unfinished / "clone")
        seconds = {}
        for phase in PHASES:
            began = time.monotonic()
            finish(phase, unfinished / "clone", unfinished / "home")
            seconds[phase.name] = time.monotonic() - began
        write_json(unfinished / "seconds.json", seconds)

    folder = case.parents[1] / "straight-run"
    build_once(folder, run)
    return folder / "clone"


def seconds_of(phase: Phase, straight: Path) -> float:
    """How long the phase took in the straight run, the first one with a bare home."""
    return read_json(straight.with_name("seconds.json"))[phase.name]


def before(phase: Phase, straight: Path, clone: Path) -> None:
    """Copy the straight run to `clone`, without what `phase` and later ones made."""
    shutil.copytree(straight, clone, symlinks=True)
    for later in PHASES[PHASES.index(phase) :]:
        for name in later.made:
            path = clone / RUN / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def results(phase: Phase, clone: Path) -> dict[str, str]:
    """Path -> digest of what the phase made; without a digest where only the name counts."""
    root = clone / RUN
    paths = [path for name in phase.made for path in [root / name, *(root / name).rglob("*")] if path.is_file()]
    names = {str(path.relative_to(root)): path for path in paths}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix in SAME_BYTES else ""
        for name, path in sorted(names.items())
        if not NOT_RESULTS.search(name)
    }


def differences(phase: Phase, clone: Path, straight: Path) -> list[str]:
    """Files that are missing, stray or different, compared with the straight run."""
    found, expected = results(phase, clone), results(phase, straight)
    stray = [str(path) for path in (clone / RUN).rglob("*.unfinished")]
    return [*stray, *sorted(name for name in found.keys() | expected if found.get(name) != expected.get(name))]


@contextmanager
def no_orphans(clone: Path) -> Iterator[None]:
    """Raise an AssertionError if processes that work in the clone outlive the block."""
    yield
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cwd", "cmdline", "status"])
        if process.info["cwd"] == str(clone) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
    assert not left, f"still running: {left}"


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole process group, as when the machine dies."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
