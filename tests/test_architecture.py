"""The structure that docs/contributing.md draws: who may import whom, no circles, folders of a readable size."""

import ast
import re
import subprocess
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests import REPOSITORY


PLUGIN = "modeling_aligned_llava"
MAY_IMPORT = {
    PLUGIN: set(),
    "tinyworld": {PLUGIN},
    "train": {PLUGIN},
    "eval": {PLUGIN},
    "research": {PLUGIN, "tinyworld", "train", "eval", "benchmarks"},
    "benchmarks": {PLUGIN, "tinyworld", "train", "eval"},
}
MOST_ENTRIES = 16
NAMED_ROOMS = ("modeling_aligned_llava", "train", "eval", "tinyworld", "benchmarks")
EMPTY_NAMES = {"found", "each", "own"}  # they say that something is held, and not what
PAGE = (REPOSITORY / "docs/contributing.md").read_text(encoding="utf-8")


def tracked(folder: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)  # noqa: S603
    return [path for path in map(Path, listed.stdout.splitlines()) if (REPOSITORY / path).is_file()]


def module_file(module: str) -> Path | None:
    path = Path(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if (REPOSITORY / file).is_file()), None)


def imported_files(file: Path) -> set[Path]:
    """The files of this repository that a file imports, wherever in it the import stands."""
    package = file.parent.parts
    names = set()
    for node in ast.walk(ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
            names.add(base)
    specific = {name for name in names if not any(part.startswith(f"{name}.") and module_file(part) for part in names)}
    return {module for name in specific if (module := module_file(name)) is not None and module != file}


FILES = [file for room in MAY_IMPORT for file in tracked(room) if file.suffix == ".py"]
IMPORTS = {file: imported_files(file) for file in FILES}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room):
    imports = {(str(file), other.parts[0]) for file in FILES if file.parts[0] == room for other in IMPORTS[file]}
    assert {pair for pair in imports if pair[1] not in MAY_IMPORT[room] | {room}} == set()


def test_names_say_what_they_hold():
    """Of variables, parameters, arguments (`id` and `arg` in ast), attributes and definitions."""
    trees = {f: ast.parse((REPOSITORY / f).read_text(encoding="utf-8")) for f in FILES if f.parts[0] in NAMED_ROOMS}
    nodes = [(file, node) for file, tree in trees.items() for node in ast.walk(tree)]
    fields = ("id", "arg", "attr", "name")
    empty = [(file, node) for file, node in nodes if {getattr(node, field, None) for field in fields} & EMPTY_NAMES]
    assert [f"{file}:{node.lineno}" for file, node in empty] == []


def test_every_program_ends_on_a_signal_with_one_line():
    rooms = ("eval", "train", "tinyworld")
    texts = {file: (REPOSITORY / file).read_text(encoding="utf-8") for file in FILES if file.parts[0] in rooms}
    programs = [file for file, text in texts.items() if '__name__ == "__main__"' in text]
    assert len(programs) > 10
    standard_library = [Path("train/run.py"), Path("eval/options.py")]  # the first has its own, tested with it
    assert [file for file in programs if "run_main(" not in texts[file]] == standard_library


@pytest.mark.parametrize("folder", sorted({parent for file in FILES for parent in file.parents}))
def test_no_circle_between_the_entries_of_a_folder(folder):
    depth = len(folder.parts)
    graph = defaultdict(set)
    for file, others in IMPORTS.items():
        for other in others:
            if file.is_relative_to(folder) and other.is_relative_to(folder) and other.name != "__init__.py":
                first, second = file.parts[depth], other.parts[depth]
                graph[first] |= {second} - {first}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_folders_fit_on_a_screen(room):
    entries = defaultdict(set)
    for path in tracked(room):
        for parent in path.parents[:-1]:
            entries[parent].add(path.relative_to(parent).parts[0])
    sizes = {str(folder): len(names - {"__init__.py"}) for folder, names in entries.items()}
    assert [folder for folder, size in sizes.items() if size > MOST_ENTRIES] == []


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_tests_lie_in_the_folders_of_the_code(room):
    """Helpers and runs of several parts lie in the folders above."""
    folders = {path.parent.relative_to("tests") for path in tracked(f"tests/{room}")}
    assert {str(folder) for folder in folders - {path.parent for path in tracked(room)}} == set()


def test_the_page_names_files_that_are_there():
    named = re.findall(r"`((?:modeling_aligned_llava|train|eval|tinyworld|configuration)/[\w./-]+)`", PAGE)
    assert len(named) > 20
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
