"""The wheel holds the plugin and the diagnostics, with the files that they read."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from functools import partial
from importlib.metadata import EntryPoint, distributions

import pytest
from lm_eval.api.registry import get_model
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from modeling_aligned_llava.diagnostics.command_line import run_command
from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY
from tests.test_versions import TRAINED


aligned_llava = partial(run_command, "aligned-llava")


def unpacked_wheel(folder):
    """The names of the files in the wheel, which is built in the folder and unpacked in its `site`."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)  # noqa: S603
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
        return archive.namelist()


def test_wheel_has_one_top_level_package_and_works_from_it(tmp_path):
    names = unpacked_wheel(tmp_path)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"modeling_aligned_llava"}
    for name in ("py.typed", "loading/chat_templates/plain.jinja"):
        assert f"modeling_aligned_llava/{name}" in names
    program = "import modeling_aligned_llava as m; print(m.__file__, m.method_names()[0])"
    env = {"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)  # noqa: S603
    assert done.stdout.split() == [str(tmp_path / "site/modeling_aligned_llava/__init__.py"), "baseline"], done.stderr

    command = [sys.executable, "-m", "modeling_aligned_llava.diagnostics", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0 and "profile" in done.stdout, done.stderr


@pytest.mark.slow
def test_the_script_needs_the_diagnostics_alone(tiny_checkpoint, tmp_path):
    unpacked_wheel(tmp_path)
    script, env = REPOSITORY / "eval/diagnostics/profile_model.py", {**os.environ}
    env.pop("PYTHONPATH", None)

    def run(*words):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr
        return done.stdout

    resolved = run("-m", "uv", "export", "--find-links", tmp_path, "--no-hashes", "--script", script)
    names = {line.partition("==")[0] for line in resolved.splitlines() if line[:1].isalpha()}
    assert {"modeling-aligned-llava", "torch", "rich"} <= names
    assert {"trl", "datasets", "accelerate", "peft", "lmms-eval", "lm-eval", "scipy", "pandas"} & names == set()

    # That environment of links to the installed packages, for a second PyTorch would take gigabytes.
    site = tmp_path / "site"
    for package in distributions():
        if canonicalize_name(package.name) in names - {"modeling-aligned-llava"}:
            for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(package.locate_file(top))
    env["PYTHONPATH"] = str(site)
    profile = run("-S", script, tiny_checkpoint("norm"), "--limit", "1", "--json", "-")
    assert json.loads(profile)["verdict"]["lines"]


@pytest.mark.parametrize("extra", ["train", "eval"])
def test_the_extras_promise_the_versions_that_are_tested(extra):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {one.name: str(one.specifier) for one in map(Requirement, project["optional-dependencies"][extra])}
    tested = {"transformers": sorted(map(Version, TRAINED)), "trl": sorted(map(Version, TRAINED.values()))}
    for name in tested.keys() & needed.keys():
        low, high = tested[name][0], tested[name][-1]
        assert needed[name] == f"<{high.major}.{high.minor + 1},>={low.major}.{low.minor}"


@pytest.mark.parametrize("group", ["lm_eval.models", "lmms_eval.models"])
def test_harnesses_find_the_models_by_their_entry_points(group):
    """As a loader of entry points does, which lm-eval has after 0.4.13."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    (entry,) = (EntryPoint(name, value, group) for name, value in project["entry-points"][group].items())
    model = entry.load()
    if group == "lm_eval.models":
        assert entry.name == "aligned_llava" and get_model("aligned_llava") is model
    else:
        assert model().model_id == entry.name == "aligned_llava"


def test_benchmarks_need_a_clone(call):
    with pytest.raises(UserError, match="--data needs a clone of the repository"):
        call(aligned_llava, "profile", "MODEL", "--data", "mirrors")


def test_diagnostics_name_a_package_that_is_missing(monkeypatch, call):
    monkeypatch.setitem(sys.modules, "rich.table", None)
    for name in [name for name in sys.modules if name.startswith("modeling_aligned_llava.diagnostics.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"rich\.table is not installed: pip install .*\[diagnostics\]"):
        call(aligned_llava, "profile", "MODEL", "--images", "images")
