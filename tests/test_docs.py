"""The docs site builds without a warning, and its pages fetch nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra `docs`)")

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = re.compile(r"<(?:script|img|iframe|source)[^>]+src=[\"']?(https?:[^\"' >]+)")
SHEETS = re.compile(r"<link[^>]+rel=[\"']?(?:stylesheet|preconnect|icon)[^>]*href=[\"']?(https?:[^\"' >]+)")


@pytest.mark.slow
def test_the_site_builds_strictly_and_is_self_contained(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    ended = subprocess.run([str(word) for word in command], cwd=REPOSITORY, capture_output=True, text=True)  # noqa: S603
    assert ended.returncode == 0, ended.stderr[-3000:]
    pages = {page.relative_to(tmp_path / "site").as_posix(): page for page in tmp_path.glob("site/**/*.html")}
    assert {"index.html", "faq/index.html", "api/plugin/index.html"} <= set(pages)
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


def test_every_page_has_its_place_in_the_navigation():
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(REPOSITORY / "docs").as_posix() for page in REPOSITORY.glob("docs/**/*.md")}
    assert pages == set(re.findall(r": ([\w/]+\.md)$", navigation, flags=re.MULTILINE))
