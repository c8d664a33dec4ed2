"""The demo listens on this machine only, limits uploads, and serves no other file and no other page."""

import urllib.error
import urllib.request
from pathlib import Path

import gradio
import pytest

from eval.demo.app import build, serve
from eval.demo.models import load_models
from tests import REPOSITORY


pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture
def served(tiny_llava, monkeypatch):
    """The demo, in an environment that asks for more than it should do."""
    monkeypatch.setenv("GRADIO_SHARE", "True")
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda self: None)
    demo = build(load_models({"tiny": str(tiny_llava)}, "cpu"), [], 4)
    serve(demo)
    yield demo
    demo.close()


def status(request: str | urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_this_machine_is_served(served):
    assert served.server_name == "127.0.0.1" and served.share_url is None


def test_no_other_file_is_served(served, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for path in (secret, REPOSITORY / "pyproject.toml", Path("/etc/passwd"), Path("../../../etc/passwd")):
        assert status(f"{served.local_url}gradio_api/file={path}") in (403, 404)


@pytest.mark.parametrize(("size", "answer"), [(1_000, 200), (53_000_000, 413)])
def test_uploads_are_limited(size, answer, served):
    border = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    body = border + bytes(size) + b"\r\n--x--\r\n"
    upload = urllib.request.Request(f"{served.local_url}gradio_api/upload", data=body, headers=headers)  # noqa: S310
    assert status(upload) == answer


def test_no_other_page_may_read_it(served):
    elsewhere = urllib.request.Request(f"{served.local_url}config", headers={"Origin": "https://evil.example"})  # noqa: S310
    with urllib.request.urlopen(elsewhere, timeout=30) as answer:  # noqa: S310
        assert answer.headers.get("Access-Control-Allow-Origin") not in ("*", "https://evil.example")
