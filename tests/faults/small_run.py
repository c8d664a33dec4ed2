"""A small comparison in a clone: data, both stages, evaluation and tables as five commands that can be stopped."""

import hashlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


RUN = Path("results/small")
PYTHON = ".venv/bin/python"
STEPS, SAVED_EVERY = 120, 20
TASKS = "pope ocrbench hellaswag"
SAME_BYTES = {".safetensors", ".json", ".jsonl", ".parquet", ".arrow", ".png", ".md", ".csv", ".tex", ".svg"}
# They tell when and how fast, not what.
NOT_RESULTS = re.compile(r"(^|/)(logs|answers|harness|\.[^/]*lock)(/|$)|(run|settings|result)\.json$|report\.html$")


@dataclass(frozen=True)
class Phase:
    """A command and what it makes in the run's folder."""

    name: str
    command: str
    made: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def _stage(number: int) -> Phase:
    command = f"bash train/run.sh --backbone tinyworld --method norm-gwc --stage stage{number} --output-root {RUN} --"
    command += f" --max_steps {STEPS} --save_steps {SAVED_EVERY}"
    return Phase(f"stage{number}", command, (f"checkpoints/norm-gwc/stage{number}",))


EVALUATION = f"{PYTHON} -m eval.suite --run {RUN} --models norm-gwc={RUN}/checkpoints/norm-gwc/stage2"
EVALUATION += f" --data {RUN}/data/mirrors --max-new-tokens 16 --tasks {TASKS}"
PHASES = (
    Phase("data", f"{PYTHON} -m tinyworld.build {RUN}/data", ("data",)),
    _stage(1),
    _stage(2),
    Phase("evaluation", EVALUATION, ("logs", "answers", "harness", "run.json", "scores.json")),
    Phase("report", f"{PYTHON} -m eval.report {RUN}", ("tables", "figures", "diagnostics", "report.html")),
)


class SmallRun:
    """A clone in `root/clone` with its home beside it; `root/output.txt` has what its commands say."""

    def __init__(self, root: Path) -> None:
        self.clone, self.home, self.log = root / "clone", root / "home", root / "output.txt"
        self.seconds: dict[Phase, float] = {}  # of each phase
        root.mkdir(exist_ok=True)

    def start_from(self, straight: "SmallRun", phase: Phase) -> None:
        """Copy that run, without what `phase` and later ones made."""
        shutil.copytree(straight.clone, self.clone, symlinks=True)
        for later in PHASES[PHASES.index(phase) :]:
            for name in later.made:
                path = self.clone / RUN / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def start(self, phase: Phase) -> subprocess.Popen[str]:
        """Start the phase as the leader of a process group."""
        self.home.mkdir(parents=True, exist_ok=True)
        homes = {"HOME": self.home, "HF_HOME": self.home / "huggingface", "XDG_CACHE_HOME": self.home / "cache"}
        command, variables = phase.command.split(), os.environ | {name: str(path) for name, path in homes.items()}
        with self.log.open("a", encoding="utf-8") as file:
            return subprocess.Popen(  # noqa: S603
                command, cwd=self.clone, env=variables, text=True, stdout=file, stderr=file, process_group=0
            )

    def finish(self, phase: Phase) -> None:
        began = time.monotonic()
        code = self.start(phase).wait()
        self.seconds[phase] = time.monotonic() - began
        assert code == 0, f"{phase} ended with {code}: {self.said()[-1000:]}"

    def said(self) -> str:
        return self.log.read_text("utf-8")

    def results(self, phase: Phase) -> dict[str, str]:
        """Path -> digest of what the phase made; without a digest where only the name counts."""
        root = self.clone / RUN
        paths = [path for name in phase.made for path in [root / name, *(root / name).rglob("*")] if path.is_file()]
        names = {str(path.relative_to(root)): path for path in paths}
        return {
            name: hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix in SAME_BYTES else ""
            for name, path in names.items()
            if not NOT_RESULTS.search(name)
        }

    def differences(self, phase: Phase, straight: "SmallRun") -> list[str]:
        """Files that are missing, stray or different, compared with that run."""
        made, expected = self.results(phase), straight.results(phase)
        stray = [str(path) for path in (self.clone / RUN).rglob("*.unfinished")]
        return [*stray, *sorted(name for name in made.keys() | expected if made.get(name) != expected.get(name))]
