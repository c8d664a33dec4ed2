"""What this machine reaches: matrix products and copies, and the data sheet of its GPU."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sheet:
    """A maker's figures: dense bfloat16 FLOP/s, and bytes/s of memory."""

    matmul: float
    bandwidth: float


SHEETS = {
    "a100": Sheet(312e12, 2.039e12),
    "h100": Sheet(989e12, 3.35e12),
    "h200": Sheet(989e12, 4.8e12),
}


def sheet_here() -> Sheet | None:
    """The data sheet of this machine's GPU, if it is one of `SHEETS`."""
    name = torch.cuda.get_device_name().lower() if torch.cuda.is_available() else ""
    return next((sheet for gpu, sheet in SHEETS.items() if gpu in name), None)


def matmul_tflops(bf16: bool, sizes: tuple[int, int, int] | None = None) -> float:
    """The speed of a matrix product on this machine, by default a large one, in TFLOP/s.

    Args:
        sizes: rows of the first matrix, what both share, columns of the second.
    """
    device = _device()
    rows, inner, columns = sizes or ((1024,) * 3 if device.type == "cpu" else (8192,) * 3)
    dtype = torch.bfloat16 if bf16 else torch.float32
    first = torch.randn(rows, inner, device=device, dtype=dtype)
    second = torch.randn(inner, columns, device=device, dtype=dtype)
    return 2 * rows * inner * columns / _seconds(lambda: (first @ second)[0, 0]) / 1e12


def copy_terabytes() -> float:
    """The speed of a large copy in this machine's memory, in TB/s, bytes read and written."""
    device = _device()
    source = torch.ones(2**24 if device.type == "cpu" else 2**28, device=device)  # no cache holds it
    copy = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: copy.copy_(source)[0]) / 1e12


def _device() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def _seconds(work: Callable[[], torch.Tensor]) -> float:
    """Mean seconds of `work` over 0.3 seconds; asking for the number that it returns waits for the device."""
    work().item()
    start, times = time.perf_counter(), 0
    while time.perf_counter() - start < 0.3:
        work().item()
        times += 1
    return (time.perf_counter() - start) / times
