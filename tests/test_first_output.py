"""A clone in a folder with a space and an umlaut in its name, an empty home: training, evaluation, report, and what
they print. Then a comparison in which one method cannot be trained."""

import os
import re
import subprocess

import pytest

from tests import REPOSITORY
from tests.clone import clone_repository


RUN = "results/odd"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REPOSITORY / ".venv/installed").exists(), reason="the commands use .venv (make install)"),
]

KNOWN = re.compile(
    r"""
    \S+\.json:\ \d+\ rows;\ \d+\ filtered,\ \d+\ damaged
  | global\ batch\ \d+\ =\ .*
  | matrix\ products\ in\ (bfloat16|float32)
  | \S+:\ (frozen|lr\ \S+),\ \d+\ tensors,\ [\d,]+\ parameters
  | [\w-]+\ stage[12]:\ (step\ \d+/\d+,\ loss\ [\d.]+(,\ \d+\ s\ left)?|done)
  | results/\S+:\ (done|already\ done|resuming\ from\ .*)
  | [\w-]+\ \w+:\ done
  | (all\ rows|everything|images|attention|training\ images\ and\ conversations|benchmark\ folders)\ ━+.*
  | (scores|report|tables,\ with\ the\ paper's):\ results/.*
  | \d+%(,\ about\ \d+\ min\ left)?:\ [\w-]+\ .*
  | ==\ \d\ .*
  | ==\ --limit\ \d+:\ a\ trial,\ without\ tables;.*
  | \s*Table\ 4\ .*
  | \s*─+\s*
  | \s+(MMBench|MM-Star|POPE|SEED-2-Plus|OCRBench|ScienceQA|AI2D|HellaSwag|MMLU|Avg)\ .*
  | ±\ half\ a\ 95\ %\ interval.*
  | Lines\ of\ one\ seed:\ .*
  | may\ differ\ by\ more\ than\ the.*
  | interval,\ so\ no\ difference\ is\ marked\.
  | end\ token\ of\ an\ answer:\ .*
  | \S+:\ moved\ by\ \S+\ of\ its\ length.*
    """,
    re.VERBOSE,
)


def unknown(output):
    return [line for line in output.splitlines() if line.strip() and not KNOWN.fullmatch(line)]


def alive(words):
    """Command lines of processes that hold `words`."""
    found = subprocess.run(["ps", "-ewwo", "stat,args"], capture_output=True, text=True).stdout.splitlines()  # noqa: S607
    return [line for line in found if words in line and not line.startswith("Z")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "Ein Ordner für Läufe"
    clone_repository(folder)
    return folder


@pytest.fixture(scope="module")
def start(clone, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    gone = ("HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"HOME": str(home), "PATH": f"{clone}/.venv/bin:{os.environ['PATH']}"}

    def start(*words):
        return subprocess.Popen(  # noqa: S603
            words, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start


@pytest.fixture(scope="module")
def output(start):
    """What each command printed, by its name."""
    said = {}

    def run(name, *words):
        process = start(*words)
        said[name], _ = process.communicate()
        assert process.returncode == 0, said[name]

    run("data", "python", "-m", "tinyworld.build", f"{RUN}/data", "--images", "60")
    steps = ["--", "--max_steps", "2", "--logging_steps", "1"]
    run("training", "train/run.sh", "--backbone", "tinyworld", "--method", "norm", "--output-root", RUN, *steps)
    model = ["--models", f"norm={RUN}/checkpoints/norm/stage2", "--max-new-tokens", "2", "--backbone", "tinyworld"]
    data = ["--data", f"{RUN}/data/mirrors"]
    run("evaluation", "python", "-m", "eval.suite", "--run", RUN, *data, *model, "--tasks", "pope")
    run("trial", "bash", "eval/run_all.sh", "--run", "given", *model[:2], *data, "--tasks", "pope", "--limit", "4")
    run("report", "python", "-m", "eval.report", RUN)
    return said


@pytest.mark.parametrize("command", ["data", "training", "evaluation", "trial", "report"])
def test_only_known_lines_are_printed(output, clone, command):
    assert output[command].strip() and unknown(output[command]) == []
    page = (clone / RUN / "report.html").read_text(encoding="utf-8")
    assert "POPE" in page and "Attention was not measured for any model" not in page


@pytest.fixture
def comparison(output, clone, start):
    """Starts a comparison of these methods in the folder that has its data already."""

    def begin(run, *methods):
        (run / "logs").mkdir(parents=True)
        (run / "data").symlink_to(clone / RUN / "data")
        return start("python", "-m", "eval.run_all", "--run", run.name, "--methods", *methods)

    return begin


def test_a_failed_training_names_itself_and_stops_what_depends_on_it(comparison, clone):
    run = clone / "results/broken"
    begun = run / "checkpoints/norm-gwc/stage1"
    begun.mkdir(parents=True)
    (begun / "settings.json").write_text('{"max_steps": 1}')
    process = comparison(run, "norm-gwc")
    said, _ = process.communicate()
    first, *others, last = unknown(said)
    assert process.returncode == 1 and last == "error: no tables without norm-gwc; the same command continues"
    assert first.startswith("norm-gwc stage1 failed: ") and "was started with other settings" in first
    assert first.endswith("see results/broken/logs/train.norm-gwc.42.log")
    assert len(others) == 3 and all("failed: not run, because norm-gwc stage" in line for line in others)
    assert (run / "harness/language-model/mmlu/result.json").exists()
    assert not alive("results/broken")
