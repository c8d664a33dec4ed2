"""With HF_HUB_OFFLINE=1, the commands that exist to talk to the Hub say so, and open no socket."""

import socket

import pytest

from eval.data import __main__ as benchmarks
from eval.report import push
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.checkpoint import local_folder
from tests.one_line import one_line


@pytest.fixture(autouse=True)
def attempts(monkeypatch):
    tried = []

    def refuse(*address, **_):
        tried.append(address)
        raise OSError("no network here")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(push, "measured_scores", lambda *_: None)
    monkeypatch.setattr(push, "model_card", lambda *_: "card")
    monkeypatch.setattr(push, "result_files", lambda *_: {})
    monkeypatch.setattr(push, "published_files", lambda _: {"config.json": b"{}"})
    yield tried
    assert tried == []


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (benchmarks.main, ["fetch", "root"]),
        (push.main, ["checkpoint", "someone/aligned", "--results", "results"]),
    ],
    ids=["eval.data fetch", "eval.report.push"],
)
def test_one_line_and_no_socket(main, words, call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with one_line(r"^cannot (fetch|publish) .*OfflineModeIsEnabled.*offline") as error:
        call(main, *words)
    assert "attempts" not in str(error.value)


def test_a_model_that_is_not_there(monkeypatch):
    with pytest.raises(UserError, match=r"^there is no folder someone/absent, and it cannot be downloaded"):
        local_folder("someone/absent")
