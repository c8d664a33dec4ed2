"""Trouble with the Hub: silence, refusals and cut connections while a dataset comes and a model goes.

Each case has one kind of fault at one address, a few times or for good. What arrives must be right to the bit. Trouble
that the Hub's client does not survive must end after a bounded number of requests in one line and leave nothing
incomplete under a final name; started again without it, the same command finishes.
"""

import hashlib
import math
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import close_session

from eval.report import push
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.hub import find_dataset
from tests.dataset_hub import DatasetHub
from tests.faults.harness import in_campaign
from tests.hub_stand_in import TOKEN, HubStandIn
from tests.local_server import Fault, LocalServer


KINDS = ("stall", "503", "429", "drop", "cut")
FOR_GOOD = math.inf
MOST_REQUESTS = 600
PATIENCE = 30.0  # seconds without an answer, where one will come
PUBLISHED = {"config.json": b"{}", "modeling_aligned_llava.py": b"# code\n"}


@contextmanager
def online(hub: LocalServer, patience: float = PATIENCE) -> Iterator[None]:
    """Talk to `hub` alone, without waits between attempts."""
    settings = {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DOWNLOAD_TIMEOUT": patience,
        "HF_HUB_ETAG_TIMEOUT": patience,
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(constants, **settings))
        stack.enter_context(mock.patch.dict("os.environ", {"HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}))
        stack.enter_context(mock.patch.object(time, "sleep", lambda _: None))
        stack.callback(close_session)
        yield


class Dataset:
    """A download into `folder/root` of what the stand-in offers: a card and a table."""

    addresses = ("/revision/", "/tree/", "HEAD ", "GET .*resolve", "GET .*test.parquet")

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.root, self.hub = folder / "root", DatasetHub(folder / "hub")
        self.content = {"README.md": b"card", "data/test.parquet": rng.randbytes(2000)}
        for name, content in self.content.items():
            path = self.hub.root / "someone/questions" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    @property
    def requests(self) -> int:
        return len(self.hub.asked)

    def run(self) -> None:
        api = HfApi(endpoint=self.hub.endpoint, token=TOKEN)
        find_dataset("someone/questions", "b" * 40, ["README.md", "*.parquet"], api).download(self.root, api)

    def check(self, complete: bool) -> None:
        for name, content in self.content.items():
            if complete or (self.root / name).exists():
                assert (self.root / name).read_bytes() == content, f"{name} differs"


class Push:
    addresses = ("repos/create", "preupload", "objects/batch", "PUT /lfs", "/commit/")

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.hub = HubStandIn()
        self.weights = folder / "model.safetensors"
        self.weights.write_bytes(rng.randbytes(100_000))

    @property
    def requests(self) -> int:
        return len(self.hub.requests)

    def run(self) -> None:
        files = {"model.safetensors": self.weights, **PUBLISHED}
        words = ["push", str(self.weights.parent), "someone/aligned", "--results", "results"]
        with (
            mock.patch("sys.argv", words),
            mock.patch.object(push, "model_card", lambda *_: "card"),
            mock.patch.object(push, "published_files", lambda _: files),
        ):
            push.main()

    def check(self, complete: bool) -> None:
        there = self.hub.files["main"]
        wanted = {"model.safetensors": self.weights.read_bytes(), "README.md": b"card", **PUBLISHED}
        assert there == wanted or (not complete and not there), f"committed: {sorted(there)}"
        assert all(hashlib.sha256(content).hexdigest() == name for name, content in self.hub.objects.items())


FAST = [
    (Dataset, 0, "503", 2),
    (Dataset, 4, "cut", FOR_GOOD),
    (Dataset, 3, "drop", 2),
    (Push, 0, "429", 1),
    (Push, 3, "500", FOR_GOOD),
]


def further_cases() -> Iterator[tuple]:
    for work in (Dataset, Push):
        for address, kind, times in product(range(len(work.addresses)), KINDS, (2, FOR_GOOD)):
            if kind == "stall" and not work.addresses[address].startswith("GET "):
                continue  # the client sets no limit of its own, or one of ten seconds
            if (work, address, kind, times) not in FAST:
                yield work, address, kind, times


@pytest.mark.parametrize(("work_class", "address", "kind", "times"), [*FAST, *in_campaign(further_cases())])
def test_trouble_is_survived_or_ends_in_one_line(work_class, address, kind, times, tmp_path):
    rng = random.Random(f"{work_class.__name__} {address} {kind} {times}")
    work = work_class(tmp_path, rng)
    patience = PATIENCE if kind != "stall" else 0.2 if times == FOR_GOOD else 2.0
    fault = Fault(work.addresses[address], kind, times)
    with work.hub as hub:
        hub.faults.append(fault)
        failed = False
        with online(hub, patience):
            try:
                work.run()
            except UserError as error:
                failed = True
                assert "\n" not in str(error) and str(error).startswith(("cannot fetch ", "cannot publish ")), error
                assert TOKEN not in str(error)
        assert work.requests < MOST_REQUESTS
        work.check(complete=not failed)
        hub.faults.clear()
        if failed:
            with online(hub):
                work.run()
            work.check(complete=True)
