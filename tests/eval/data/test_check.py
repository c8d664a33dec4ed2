"""Fetching against a stand-in of the Hub's dataset API, and checking what lies in a root."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from eval.data import __main__ as command
from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.data.check import check, problem
from eval.data.fetch import REVISIONS
from modeling_aligned_llava.errors import UserError
from tests.benchmark_stand_in import pope, write_dataset


class DatasetHub(BaseHTTPRequestHandler):
    """Dataset info, file tree and files of a folder of mirrors, at one commit a dataset."""

    root = None
    commit = "a" * 40
    asked: list[str] = []  # noqa: RUF012
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, headers=()):
        self.send_response(200)
        for name, value in (("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        if path.startswith("/api/datasets/"):
            organisation, name = path.split("/")[3:5]
            folder = self.root / organisation / name
            files = sorted(file for file in folder.rglob("*") if file.is_file())
            siblings = [{"rfilename": file.relative_to(folder).as_posix()} for file in files]
            if "/tree/" in path:
                body = [
                    {"type": "file", "path": s["rfilename"], "size": f.stat().st_size, "oid": "0" * 40}
                    for s, f in zip(siblings, files, strict=True)
                ]
            else:
                body = {"id": f"{organisation}/{name}", "sha": self.commit, "siblings": siblings}
            self.reply(json.dumps(body).encode(), [("Content-Type", "application/json")])
        else:  # /datasets/org/name/resolve/commit/path
            _, _, organisation, name, _, _, *rest = path.split("/")
            body = (self.root / organisation / name / "/".join(rest)).read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()}"'
            self.reply(body, [("ETag", etag), ("X-Repo-Commit", self.commit)])

    do_HEAD = do_GET


@pytest.fixture
def hub(mirror_root, monkeypatch):
    monkeypatch.setattr(DatasetHub, "root", mirror_root)
    monkeypatch.setattr(DatasetHub, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), DatasetHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(root, endpoint):
    """In a process of its own: the endpoint and the offline switch are read when huggingface_hub is imported."""
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    code = (
        "import sys, pathlib; from eval.data.fetch import fetch; from huggingface_hub import HfApi;"
        "from modeling_aligned_llava.errors import run_main;"
        "run_main(lambda: fetch(pathlib.Path(sys.argv[1]), HfApi()))"
    )
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, str(root)], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_fetch_brings_all_nine_once_and_keeps_to_their_revisions(hub, tmp_path):
    root = tmp_path / "root"
    first = fetch(root, hub)
    assert first.returncode == 0, first.stderr[-2000:]
    assert json.loads((root / REVISIONS).read_text()) == {b.folder: DatasetHub.commit for b in BENCHMARKS}
    assert check(root, hub_rows=False) == dict.fromkeys(b.key for b in BENCHMARKS)
    parts = sum(path.endswith(".parquet") for path in DatasetHub.asked)
    assert parts > len(BENCHMARKS)
    DatasetHub.asked.clear()
    assert fetch(root, hub).returncode == 0
    assert not [path for path in DatasetHub.asked if path.endswith(".parquet") and "resolve" not in path]
    revisions = json.loads((root / REVISIONS).read_text())
    revisions["lmms-lab-encoder/POPE"] = "b" * 40
    (root / REVISIONS).write_text(json.dumps(revisions))
    assert "revision aaaaaaaa, but" in check(root, hub_rows=False)["pope"]


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_one_line(tmp_path):
    ended = fetch(tmp_path / "root", "http://127.0.0.1:9")
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].startswith("error: cannot fetch lmms-lab-encoder/")


def test_check_names_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        check(tmp_path / "none")
    write_dataset(tmp_path / "lmms-lab-encoder/POPE", {"default": {"test": pope(6)}})
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=False) is None
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=True) == "6 rows of test, expected 9000"
    assert problem(tmp_path, BY_KEY["ai2d"], hub_rows=False).startswith("no folder ")
    rows, features = pope(6)
    for row in rows:
        del row["answer"]
    del features["answer"]
    write_dataset(tmp_path / "lmms-lab-encoder/POPE", {"default": {"test": (rows, features)}})
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=False) == "no column answer"


def test_check_command_fails_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["data", "check", str(tmp_path)])
    with pytest.raises(UserError, match=r"benchmarks cannot be scored: mmbench \(no folder"):
        command.main()
    assert "MMBench" in capsys.readouterr().out
