"""Trouble with the Hub while a dataset comes and a model goes: refusals and cut connections, a few times or for good.

What arrives must be right to the bit. Trouble that the Hub's client does not survive must end in one line and leave
nothing incomplete under a final name; started again without it, the same command finishes.
"""

import hashlib
import math
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import close_session

from eval.data import __main__ as benchmarks
from eval.report import push
from modeling_aligned_llava.errors import UserError
from tests.dataset_hub import DatasetHub
from tests.hub_stand_in import TOKEN, HubStandIn
from tests.local_server import Fault, LocalServer


FOR_GOOD = math.inf
PUBLISHED = {"config.json": b"{}", "modeling_aligned_llava.py": b"# code\n"}


@contextmanager
def online(hub: LocalServer) -> Iterator[None]:
    """Talk to `hub` alone, without waits between attempts."""
    settings = {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(constants, **settings))
        stack.enter_context(mock.patch.dict("os.environ", {"HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}))
        stack.enter_context(mock.patch.object(time, "sleep", lambda _: None))
        stack.callback(close_session)
        yield


class Dataset:
    """A download into `folder/root` of what the stand-in offers: a card and a table."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.root, self.hub = folder / "root", DatasetHub(folder / "hub")
        self.content = {"README.md": b"card", "data/test.parquet": rng.randbytes(2000)}
        for name, content in self.content.items():
            path = self.hub.root / "someone/questions" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def run(self) -> None:
        api = HfApi(endpoint=self.hub.endpoint, token=TOKEN)
        questions = SimpleNamespace(folder="someone/questions", revision="b" * 40)
        with mock.patch.object(benchmarks, "datasets", lambda: [questions]):
            benchmarks.fetch(self.root, api)

    def check(self, complete: bool) -> None:
        for name, content in self.content.items():
            path = self.root / "someone/questions" / name
            if complete or path.exists():
                assert path.read_bytes() == content, f"{name} differs"


class Push:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.hub = HubStandIn()
        self.weights = folder / "model.safetensors"
        self.weights.write_bytes(rng.randbytes(100_000))

    def run(self) -> None:
        files = {"model.safetensors": self.weights, **PUBLISHED}
        words = ["push", str(self.weights.parent), "someone/aligned", "--results", "results"]
        with (
            mock.patch("sys.argv", words),
            mock.patch.object(push, "measured_scores", lambda *_: None),
            mock.patch.object(push, "model_card", lambda *_: "card"),
            mock.patch.object(push, "result_files", lambda *_: {}),
            mock.patch.object(push, "published_files", lambda _: files),
        ):
            push.main()

    def check(self, complete: bool) -> None:
        there = self.hub.files["main"]
        wanted = {"model.safetensors": self.weights.read_bytes(), "README.md": b"card", **PUBLISHED}
        assert there == wanted or (not complete and not there), f"committed: {sorted(there)}"
        assert all(hashlib.sha256(content).hexdigest() == name for name, content in self.hub.objects.items())


@pytest.mark.parametrize(
    ("work_class", "address", "kind", "times"),
    [
        (Dataset, "/revision/", "503", 2),
        (Dataset, "GET .*test.parquet", "cut", FOR_GOOD),
        (Dataset, "GET .*resolve", "drop", 2),
        (Push, "repos/create", "429", 1),
        (Push, "PUT /lfs", "500", FOR_GOOD),
    ],
)
def test_trouble_is_survived_or_ends_in_one_line(work_class, address, kind, times, tmp_path):
    work, failed = work_class(tmp_path, random.Random(0)), False
    with work.hub as hub, online(hub):
        hub.faults.append(Fault(address, kind, times))
        try:
            work.run()
        except UserError as error:
            failed = True
            assert "\n" not in str(error) and str(error).startswith(("cannot fetch ", "cannot publish ")), error
            assert TOKEN not in str(error)
        work.check(complete=not failed)
        hub.faults.clear()
        if failed:
            work.run()
            work.check(complete=True)
