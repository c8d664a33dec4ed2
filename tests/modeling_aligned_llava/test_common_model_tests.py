"""transformers' own common model tests hold for our class wherever they hold for stock LLaVA.

They come out of the source distribution of the installed version; nothing of it is kept in the repository.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import transformers


HERE = Path(__file__).parent
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

# What fails for stock LLaVA and for ours, and why.
EXPLAINED = {
    "test_generation_tester_mixin_inheritance": "asks for the generation tests, which the source distribution lacks",
    "test_training_gradient_checkpointing": "LLaVA reads CLIP before its post_layernorm, which so gets no gradient",
    "test_training_gradient_checkpointing_use_reentrant_false": "the same",
    "test_training_gradient_checkpointing_use_reentrant_true": "the same",
}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory) -> Path:
    """Folder with the package `upstream`, the tests of the source distribution, and what they import."""
    root = tmp_path_factory.mktemp("common-model-tests")
    version = transformers.__version__
    download = ["download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--dest", str(root)]
    subprocess.run([*PIP, *download, f"transformers=={version}"], check=True)  # noqa: S603
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(root), "parameterized==0.9.0"], check=True)  # noqa: S603
    package = root / "upstream"
    for folder in (package, package / "exporters", package / "generation"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    with tarfile.open(root / f"transformers-{version}.tar.gz") as archive:
        tests = archive.extractfile(f"transformers-{version}/tests/test_modeling_common.py")
        assert tests is not None
        (package / "test_modeling_common.py").write_bytes(tests.read())
    (package / "exporters" / "test_export.py").write_text("class ExportTesterMixin: ...\n")
    (package / "generation" / "test_utils.py").write_text("class GenerationTesterMixin: ...\n")
    return root


@pytest.mark.slow
def test_common_model_tests_pass_as_for_stock_llava(upstream):
    command = [sys.executable, "-m", "pytest", "--override-ini=addopts=", "-q", "--tb=line", "-p", "no:cacheprovider"]
    command += [f"--junitxml={upstream / 'result.xml'}", str(HERE / "common_model_tests.py")]
    path = os.pathsep.join([str(HERE.parents[1]), str(upstream)])
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603
    assert run.returncode in (0, 1), run.stdout  # 1: some tests failed; anything else: they did not run

    outcomes: dict[str, dict[str, set[str]]] = {}
    for case in ElementTree.parse(upstream / "result.xml").iter("testcase"):  # noqa: S314
        kind = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        name = case.attrib["name"].split(" ")[0]
        outcomes.setdefault(case.attrib["classname"].split(".")[-1], {}).setdefault(kind, set()).add(name)
    ours, stock = outcomes["AlignedLlavaTest"], outcomes["StockLlavaTest"]
    assert ours.get("failure", set()) == stock.get("failure", set()) == set(EXPLAINED), run.stdout[-5000:]
    assert "error" not in ours | stock
    assert len(ours["passed"] - set(EXPLAINED)) >= 100
    print({name: {kind: len(tests) for kind, tests in kinds.items()} for name, kinds in outcomes.items()})  # noqa: T201
