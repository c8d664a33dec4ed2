"""The docs site builds without a warning, and its pages fetch nothing from elsewhere."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml

from tests import REPOSITORY
from tests.pages import blocks


pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra `docs`)")

SOURCES = re.compile(r"<(?:script|img|iframe|source)[^>]+src=[\"']?(https?:[^\"' >]+)")
SHEETS = re.compile(r"<link[^>]+rel=[\"']?(?:stylesheet|preconnect|icon)[^>]*href=[\"']?(https?:[^\"' >]+)")


def shown(language: str) -> list[str]:
    return [block for page in sorted(REPOSITORY.glob("docs/**/*.md")) for block in blocks(page, language)]


def test_commands_and_code_of_the_pages_parse():
    assert len(shown("bash")) > 10 and len(shown("yaml")) > 1
    for block in shown("bash"):
        parsed = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)  # noqa: S607
        assert parsed.returncode == 0, block + parsed.stderr
    for block in shown("python"):
        compile(block, "docs", "exec")
    for block in shown("yaml"):
        yaml.safe_load(block)


def test_modules_that_the_pages_name_are_there():
    for module in set(re.findall(r"python -m ([\w.]+)", "\n".join(shown("bash")))):
        assert find_spec(module) is not None, module


def test_the_site_builds_strictly_and_is_self_contained(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    ended = subprocess.run([str(word) for word in command], cwd=REPOSITORY, capture_output=True, text=True)  # noqa: S603
    assert ended.returncode == 0, ended.stderr[-3000:]
    pages = {page.relative_to(tmp_path / "site").as_posix(): page for page in tmp_path.glob("site/**/*.html")}
    assert {"index.html", "train/index.html", "api/plugin/index.html"} <= set(pages)
    for name, page in pages.items():
        text = page.read_text(encoding="utf-8")
        assert SOURCES.findall(text) + SHEETS.findall(text) == [], name
        assert "fonts.googleapis" not in text and str(REPOSITORY) not in text, name
    plugin = pages["api/plugin/index.html"].read_text(encoding="utf-8")
    for documented in ("AlignedLlavaConfig", "GlobalWeightCompensatedLayerNorm", "assemble", "mean_embedding_norm"):
        assert re.search(rf'id="modeling_aligned_llava\.[\w.]*{documented}"', plugin), documented
    assert (tmp_path / "site/repository/configuration/methods.yaml.txt").read_text(encoding="utf-8") == (
        REPOSITORY / "configuration/methods.yaml"
    ).read_text(encoding="utf-8")


def test_pages_that_code_and_recipes_name_are_there():
    command = ["git", "grep", "-hoE", r"docs/[a-z_]+\.md", "--", ":!CHANGELOG.md"]
    named = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
    assert len(named) > 20
    assert [page for page in set(named) if not (REPOSITORY / page).is_file()] == []


def test_every_page_has_its_place_in_the_navigation():
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(REPOSITORY / "docs").as_posix() for page in REPOSITORY.glob("docs/**/*.md")}
    assert pages == set(re.findall(r": ([\w/]+\.md)$", navigation, flags=re.MULTILINE))
