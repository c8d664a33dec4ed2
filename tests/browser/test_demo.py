"""The demo in a browser: two models answer an upload; a file that is not an image, or too large, is refused."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse

import pytest
from PIL import Image

from tests import REPOSITORY
from tests.benchmark_stand_in import write_llava
from tests.browser.conftest import serious_violations


playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
pytest.importorskip("gradio", reason="gradio is not installed (extra `demo`)")
pytestmark = pytest.mark.slow

MODELS = ("one", "two")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo as a process of its own, with two tiny random models that answer at length."""
    folder = tmp_path_factory.mktemp("demo")
    models = [f"{name}={write_llava(folder / name, seed)}" for seed, name in enumerate(MODELS)]
    examples = folder / "examples"
    examples.mkdir()
    Image.new("RGB", (96, 96), "red").save(examples / "red.png")
    words = [sys.executable, "-m", "eval.demo", "--models", *models, "--examples", examples, "--max-new-tokens", "48"]
    process = subprocess.Popen(list(map(str, words)), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)  # noqa: S603
    line = process.stdout.readline()
    assert "http" in line, "the demo did not start"
    yield process, line.split()[4]
    process.terminate()
    process.wait(30)


@pytest.fixture
def opened(page, demo):
    process, address = demo
    page.goto(address)
    page.locator("#ask").wait_for(timeout=60_000)
    yield page
    assert process.poll() is None, "the demo ended"
    assert {urlparse(url).hostname for url in page.requested if url.startswith("http")} == {"127.0.0.1"}


def upload(page, path: Path) -> None:
    page.locator("#upload input[type=file]").set_input_files(path)


def write_image(path: Path, colour: str = "blue") -> Path:
    image = Image.new("RGB", (120, 80), "white")
    image.paste(colour, (10, 10, 50, 50))
    image.save(path)
    return path


def most_memory(process: subprocess.Popen) -> int:
    """Bytes that a process has held at most."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def ask(page, question: str) -> None:
    page.locator("#question textarea").fill(question)
    page.locator("#ask").click()


def assert_answered(page) -> None:
    for number in range(len(MODELS)):
        playwright.expect(page.locator(f"#answer-{number} textarea")).not_to_have_value("", timeout=60_000)
        playwright.expect(page.locator(f"#overlay-{number} img")).to_be_visible(timeout=60_000)
        playwright.expect(page.locator(f"#overlay-{number} figcaption")).to_contain_text(
            "of the attention is on the image"
        )
    playwright.expect(page.locator("#norms img")).to_be_visible(timeout=60_000)


def test_two_models_answer_an_upload_and_each_word_has_its_overlay(opened, tmp_path):
    upload(opened, write_image(tmp_path / "blue.png"))
    playwright.expect(opened.locator("#image img")).to_be_visible()
    ask(opened, "Describe the image.")
    assert_answered(opened)
    assert serious_violations(opened) == []
    rows = opened.locator("#norms table tr")
    assert [row.split()[0] for row in rows.all_inner_texts()] == ["model", *MODELS]
    words = opened.locator("#words-0 input[type=radio]")
    assert words.count() > 1
    before = opened.locator("#overlay-0 img").get_attribute("src")
    words.nth(words.count() - 1).check()
    playwright.expect(opened.locator("#overlay-0 img")).not_to_have_attribute("src", before)


def test_a_bad_upload_is_refused_and_the_next_image_is_answered(opened, demo, tmp_path):
    def refused(path: Path, message: str) -> None:
        upload(opened, path)
        toast = opened.get_by_test_id("toast-body").filter(has_text=message)
        playwright.expect(toast).to_be_visible(timeout=30_000)
        assert str(Path("/tmp")) not in toast.inner_text()  # noqa: S108  no path of this machine
        toast.get_by_test_id("toast-close").click()
        playwright.expect(opened.locator("#image img")).to_have_count(0)

    opened.locator("#ask").click()
    toast = opened.get_by_test_id("toast-body").filter(has_text="Upload or choose an image first")
    playwright.expect(toast).to_be_visible()
    toast.get_by_test_id("toast-close").click()
    (tmp_path / "letter.txt").write_text("Dear reader, I am not an image.")
    refused(tmp_path / "letter.txt", "Invalid file type")
    (tmp_path / "letter.png").write_text("Dear reader, I am not an image.")
    refused(tmp_path / "letter.png", "The image cannot be read as an image")
    Image.new("1", (20_000, 20_000)).save(tmp_path / "large.png")
    before = most_memory(demo[0])
    refused(tmp_path / "large.png", "The image has far more than 100000000 pixels")
    assert most_memory(demo[0]) - before < 200_000_000  # decoded to RGB it would be 1.2 GB
    upload(opened, write_image(tmp_path / "good.png", "green"))
    playwright.expect(opened.locator("#image img")).to_be_visible()
    ask(opened, "What colour is the square?")
    assert_answered(opened)


def test_an_example_can_be_chosen(opened):
    opened.locator("#examples .thumbnail-item").first.click()
    playwright.expect(opened.locator("#image img")).to_be_visible()
    ask(opened, "What colour is the image?")
    assert_answered(opened)
