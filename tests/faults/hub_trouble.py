"""Trouble with the Hub: silence, refusals, cut connections and wrong content while datasets come and a model goes.

Each case has one kind of fault at one address, a few times or for good. Short trouble must be survived, and what
arrives must be right to the bit. Lasting trouble must end after a bounded number of requests in one line and leave
nothing incomplete under a final name; started again without it, the same command finishes.
"""

import hashlib
import io
import json
import math
import random
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from huggingface_hub import HfApi, constants
from huggingface_hub.utils import close_session

from eval.data import fetch as benchmarks
from eval.report import push
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading import hub_dataset, hub_retries
from tests.dataset_hub import DatasetHub
from tests.faults.campaign import Campaign, Case
from tests.hub_stand_in import TOKEN, HubStandIn
from tests.local_server import RETRY_AFTER, Fault, LocalServer
from train.data.fetch import SETS
from train.data.fetch import fetch as fetch_training_data


KINDS = ("stall", "500", "503", "429", "drop", "cut")
FOR_GOOD = math.inf
MOST_REQUESTS = 600
_PATIENCE = 30.0  # seconds without an answer, where one will come
_PUSHED = {"config.json": b"{}", "modeling_aligned_llava.py": b"# code\n"}


@contextmanager
def online(hub: LocalServer, patience: float = _PATIENCE) -> Iterator[list[float]]:
    """Talk to `hub` alone, without waits between attempts; yields the seconds that would have been waited."""
    waits: list[float] = []
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
        stack.enter_context(mock.patch.object(hub_retries, "SILENCE", patience))
        stack.enter_context(mock.patch.object(time, "sleep", waits.append))
        stack.callback(close_session)
        yield waits


class Download:
    """A fetch: the benchmarks' or one of the training data."""

    def __init__(self, folder: Path, rng: random.Random, hub: DatasetHub) -> None:
        self.folder, self.rng, self.hub, self.root = folder, rng, hub, folder / "root"
        self.api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        self.content: dict[Path, bytes] = {}  # final path -> what must be there

    def offer(self, repository: str, name: str, content: bytes, final: Path | None = None) -> None:
        path = self.hub.root / repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.content[final or self.root / repository / name] = content

    @property
    def requests(self) -> int:
        return len(self.hub.asked)

    def check(self, complete: bool) -> None:
        for path, content in self.content.items():
            if complete or path.exists():
                assert path.read_bytes() == content, f"{path.name} differs"


class Benchmarks(Download):
    addresses = ("/revision/|/api/datasets/[^/]+/[^/]+$", "/tree/", "HEAD .*parquet", "GET .*parquet", "GET .*README")
    contents = (3, 4)

    def __init__(self, folder: Path, rng: random.Random, hub: DatasetHub) -> None:
        super().__init__(folder, rng, hub)
        self.datasets = benchmarks.datasets()[:2]
        for benchmark in self.datasets:
            self.offer(benchmark.folder, "README.md", b"---\nconfigs: []\n---\n")
            self.offer(benchmark.folder, "data/test-00000-of-00001.parquet", rng.randbytes(rng.randrange(1, 9000)))

    def run(self) -> None:
        with mock.patch.object(benchmarks, "datasets", lambda: self.datasets):
            benchmarks.fetch(self.root, self.api)


class TrainingData(Download):
    addresses = ("/revision/", "/tree/", "HEAD ", "GET .*resolve", "GET .*images.zip|GET .*parquet")
    contents = (3, 4)

    def __init__(self, folder: Path, rng: random.Random, hub: DatasetHub) -> None:
        super().__init__(folder, rng, hub)
        self.name = rng.choice(list(SETS))
        repository = SETS[self.name].name
        if self.name == "llava-next":
            for shard in range(3):
                name = f"train-{shard:05d}-of-00003.parquet"
                final = self.root / "stage2" / name
                self.offer(repository, f"data/{name}", rng.randbytes(rng.randrange(1, 9000)), final)
            return
        images = {f"{number}.jpg": rng.randbytes(400) for number in range(5)}
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as zipped:
            for name, image in images.items():
                zipped.writestr(name, image)
        self.offer(repository, "images.zip", packed.getvalue(), self.root / "images.zip")
        rows = json.dumps([{"image": name} for name in images]).encode()
        self.offer(repository, "blip_laion_cc_sbu_558k.json", rows, self.root / "stage1.json")
        self.content |= {self.root / "images" / name: image for name, image in images.items()}

    def run(self) -> None:
        fetch_training_data(self.name, self.root, self.api)


class Push:
    addresses = ("repos/create", "preupload", "objects/batch", "PUT /lfs", "/commit/")
    contents = ()

    def __init__(self, folder: Path, rng: random.Random, hub: HubStandIn) -> None:
        self.hub = hub
        self.weights = folder / "model.safetensors"
        self.weights.write_bytes(rng.randbytes(100_000))

    @property
    def requests(self) -> int:
        return len(self.hub.requests)

    def run(self) -> None:
        files = {"model.safetensors": self.weights, **_PUSHED}
        words = ["push", str(self.weights.parent), "someone/aligned", "--results", "results"]
        with (
            mock.patch("sys.argv", words),
            mock.patch.object(push, "model_card", lambda *_: "card"),
            mock.patch.object(push, "published_files", lambda _: files),
        ):
            push.main()

    def check(self, complete: bool) -> None:
        there = self.hub.files["main"]
        wanted = {"model.safetensors": self.weights.read_bytes(), "README.md": b"card", **_PUSHED}
        assert there == wanted or (not complete and not there), f"committed: {sorted(there)}"
        assert all(hashlib.sha256(content).hexdigest() == name for name, content in self.hub.objects.items())


WORK: dict[str, tuple[Any, Callable[[Path], LocalServer]]] = {
    "benchmarks": (Benchmarks, lambda folder: DatasetHub(folder / "hub")),
    "training data": (TrainingData, lambda folder: DatasetHub(folder / "hub")),
    "push": (Push, lambda folder: HubStandIn()),
}


def run(folder: Path, name: str, address: int, kind: str, times: float, seed: str) -> dict[str, int]:
    """One piece of work under one fault, and again after a lasting one."""
    rng = random.Random(seed)
    work_class, serve = WORK[name]
    patience = _PATIENCE if kind != "stall" else 0.2 if times == FOR_GOOD else 2.0
    with serve(folder) as hub, online(hub, patience) as waits:
        work = work_class(folder, rng, hub)
        large = rng.choice([1000, 1 << 30])  # small: files are continued, not fetched again
        hub.faults.append(Fault(work.addresses[address], kind, times))
        failed = False
        with mock.patch.object(hub_dataset, "LARGE", large):
            try:
                work.run()
            except UserError as error:
                failed = True
                assert "\n" not in str(error) and str(error).startswith(("cannot fetch ", "cannot publish ")), error
                assert TOKEN not in str(error)
            requests, met = work.requests, hub.faults[0].met > 0
            assert requests < MOST_REQUESTS, f"{requests} requests"
            if kind == "429" and waits:  # the client can do without some answers
                assert max(waits) >= RETRY_AFTER, f"waited {max(waits)} s, asked for {RETRY_AFTER} s"
            work.check(complete=not failed)
            assert times == FOR_GOOD or not failed, f"gave up after {times} x {kind}"
        hub.faults.clear()
        if failed:
            with mock.patch.object(hub_dataset, "LARGE", large), online(hub):
                work.run()
            work.check(complete=True)
    return {"runs": 1, "met": int(met), "lasting": int(failed), "requests": requests}


def cases(seed: int) -> Iterator[Case]:
    for name, (work, _) in WORK.items():
        for address in range(len(work.addresses)):
            for kind in (*KINDS, *(["damage"] if address in work.contents else [])):
                for times in (2, FOR_GOOD):
                    if (kind, times) == ("stall", FOR_GOOD) and "HEAD" in work.addresses[address]:
                        continue  # the client waits ten seconds each time, whatever we ask for
                    label = f"{name} {address} {kind} {times}"

                    def run_it(folder: Path, name=name, address=address, kind=kind, times=times, label=label) -> dict:
                        return run(folder, name, address, kind, times, f"{seed} {label}")

                    yield Case(label, run_it)


CAMPAIGN = Campaign("hub_trouble", cases)
