"""Private names of other libraries: all that the source uses stand in the table, and one that is gone is one line."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from PIL import ImageFile
from transformers import PreTrainedModel, Trainer
from trl import SFTTrainer

from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from modeling_aligned_llava.harness.lmms_eval_model import AlignedLlava
from modeling_aligned_llava.inference.prefix_tree import BufferLayer
from modeling_aligned_llava.loading import upstream
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaPreTrainedModel, NormOnConnector
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm
from tests import REPOSITORY
from train.optimization.trainer import AlignedSFTTrainer


ROOMS = ("modeling_aligned_llava", "train", "eval", "tinyworld")
FILES = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
PATHS = [path for names in upstream.NEEDED.values() for path in names]
LISTED = {part for path in PATHS for part in re.split("[.:]", path)}
STANDARD = {"_ActionsContainer", "_actions", "_asdict", "_exit"}  # of Python's own library
ADAPTERS = (
    *(AlignedSFTTrainer, AlignedLlavaLM, AlignedLlava, NormOnConnector, AlignedLlavaPreTrainedModel),
    *(GlobalWeightCompensatedLayerNorm, BufferLayer),
)


def private(name: str | None) -> bool:
    return re.match("_[a-zA-Z]", name or "") is not None


def members(tree: ast.AST) -> Iterator[str]:
    """What a source defines: functions, classes, variables, and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


@pytest.mark.parametrize("module", upstream.NEEDED)
def test_every_name_is_there(module, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)  # lmms-eval's tasks set it for good
    upstream.require(module)


def test_the_versions_in_its_lines_are_the_pinned_ones():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE))
    assert {library: pins[library] for library in upstream.TESTED} == upstream.TESTED
    assert {re.split("[.:]", path)[0] for path in PATHS} == upstream.TESTED.keys()


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (Trainer, "_get_train_sampler", "transformers.Trainer._get_train_sampler, which trainer.py needs"),
        (PreTrainedModel, "_is_stateful", "transformers.PreTrainedModel._is_stateful, which prefix_tree.py needs"),
        (SFTTrainer, "__init__", "trl.SFTTrainer._total_train_tokens, which trainer.py needs"),
    ],
)
def test_a_name_that_is_gone_is_one_line(monkeypatch, owner, name, said):
    monkeypatch.delattr(owner, name)
    library, asks = said.partition(".")[0], "prefix_tree" not in said
    with pytest.raises(ImportError) as error:
        upstream.require("train.optimization.trainer" if asks else "modeling_aligned_llava.loading.registration")
    pinned = f"pip install {library}=={upstream.TESTED[library]}"
    assert str(error.value) == f"{library} {version(library)} has no {said}: {pinned}"


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_a_class_overrides_or_sets_of_its_bases_is_listed(adapter):
    bases = [base for base in adapter.__mro__[1:] if base.__module__.partition(".")[0] not in ROOMS]
    theirs = {name for base in bases for name in vars(base)}
    for base in bases:
        theirs |= {*getattr(inspect.unwrap(base.__init__), "__code__", private.__code__).co_names}
    taken = theirs & {*members(ast.parse(textwrap.dedent(inspect.getsource(adapter))))}
    assert {name for name in taken if private(name)} - LISTED == set()


def test_what_the_source_imports_or_reads_is_listed():
    trees = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
    ours = {name for tree in trees.values() for name in members(tree)}
    used: set[tuple[str, Path]] = set()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in ROOMS:
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
                names = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
            elif isinstance(node, ast.keyword):
                names = [node.arg or ""]
            used |= {(name, path) for name in names if private(name)}
    assert {(name, path.name) for name, path in used if name not in ours | LISTED | STANDARD} == set()
    assert "_filelock" in {name for name, _ in used}
