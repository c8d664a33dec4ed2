"""Where steps run: Ray on this machine, or the cluster that RAY_ADDRESS names."""

import logging
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    import ray

LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # not a cluster: every port on 127.0.0.1
    "RAY_memory_monitor_refresh_ms": "0",  # would kill steps, which are small, for what their children hold
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # steps without a GPU keep CUDA_VISIBLE_DEVICES
}
OBJECT_STORE = 80 << 20  # bytes, Ray's least: events are small
LONGEST_TEMP = 25  # characters; Ray adds 78 to those of its sockets, of which macOS takes 103
CANCEL = 10.0  # seconds that a cancelled step has: `child.GRACE` and a little


@dataclass(frozen=True)
class Pool:
    """Ray's slots.

    Attributes:
        jobs: most steps side by side; None for as many as there are cores or GPUs.
        unit: what a step takes of Ray's resource "CPU" or "GPU".
    """

    jobs: int | None
    resource: str
    unit: float

    def slots(self) -> int:
        """How many steps fit now; nodes may join and leave a cluster."""
        import ray

        fit = int(ray.cluster_resources().get(self.resource, 0) / self.unit + 1e-6)
        return fit if self.jobs is None else min(fit, self.jobs)

    def start(self, work: Any, name: str) -> "ray.ObjectRefGenerator":
        """Submit a step; iterating over the result gives references to what it yields."""
        import ray

        takes = {"num_cpus": 0, "num_gpus": self.unit} if self.resource == "GPU" else {"num_cpus": self.unit}
        return ray.remote(_stream).options(name=name, max_retries=0, **takes).remote(work, os.getcwd())

    def stop(self, streams: "Iterable[ray.ObjectRefGenerator]") -> None:
        """Cancel steps, and give them time to stop their processes."""
        import ray

        left = list(streams)
        for stream in left:
            ray.cancel(stream)
        while left:
            ended: list[Any]
            ended, left = ray.wait(left, num_returns=1, timeout=CANCEL)  # type: ignore[assignment]  # streams too
            if not ended:
                return
            for stream in ended:
                try:
                    ray.get(next(stream))
                    left.append(stream)  # what it yielded before
                except (StopIteration, ray.exceptions.RayError):
                    continue


def _stream(work: Any, folder: str) -> Iterator[Any]:
    os.chdir(folder)  # of a cluster's machine too
    for event in work():  # noqa: UP028  # Ray sends values, which `yield from` would pass on
        yield event


def _temp() -> str:
    """The folder for temporary files, or /tmp if sockets in it would have longer names than the system takes."""
    folder = tempfile.gettempdir()
    # mkdtemp draws the name inside /tmp, which only its owner can enter
    return folder if len(folder) <= LONGEST_TEMP else "/tmp"  # noqa: S108  # nosec B108


@contextmanager
def _no_api_server() -> Iterator[None]:
    """Start Ray without the one process that asks the metadata servers of three clouds where it runs, and does so with
    usage statistics off (ray-project/ray#51793; still in 2.60). It also takes 100 MB.
    """
    from ray._private import services

    original = services.start_api_server
    services.start_api_server = lambda *_, **__: (None, None)
    try:
        yield
    finally:
        services.start_api_server = original


@contextmanager
def open_pool(jobs: int | None, device: str) -> Iterator[Pool]:
    """Start Ray, or connect to the cluster at RAY_ADDRESS, until the block ends.

    Args:
        jobs: steps side by side; None for one a GPU, or without GPUs 2 on this machine and one a core on a cluster.
        device: "cpu" leaves GPUs alone.
    """
    cluster = bool(os.environ.get("RAY_ADDRESS"))
    if not cluster:
        os.environ.update(LOCAL)  # read when Ray is imported
    import ray

    on_sigterm = signal.getsignal(signal.SIGTERM)  # Ray sets its own
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    with tempfile.TemporaryDirectory(prefix="ray-", dir=_temp(), ignore_cleanup_errors=True) as folder:
        if cluster:
            ray.init(**quiet)
            gpus = int(ray.cluster_resources().get("GPU", 0)) if device != "cpu" else 0
        else:
            gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
            size: dict[str, Any] = {"num_cpus": jobs or 2, "num_gpus": gpus, "object_store_memory": OBJECT_STORE}
            with _no_api_server():
                ray.init(address="local", include_dashboard=False, _temp_dir=folder, **size, **quiet)
        signal.signal(signal.SIGTERM, on_sigterm)
        try:
            if gpus:
                yield Pool(jobs, "GPU", min(1.0, gpus / (jobs or gpus)))
            else:
                yield Pool(jobs, "CPU", 1.0)
        finally:
            ray.shutdown()
