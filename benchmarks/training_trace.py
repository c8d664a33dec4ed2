"""One step of a training under the profiler: where do device and host spend it?"""

import time
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback


DEAREST = 20  # operators in a table


class Trace(TrainerCallback):
    """Profiles step `step`, the first after one that warms up."""

    step = 2

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.profiler = profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_gpu)
        self.seconds = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1:
            self._wait()
            self.profiler.start()
            self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self._wait()
            self.seconds = time.perf_counter() - self.start
            self.profiler.stop()

    def _wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def write(self, path: Path) -> dict[str, Any]:
        """Write the Chrome trace; return seconds and counts of the step, and tables of the dearest operators."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.profiler.export_chrome_trace(str(path))
        events = self.profiler.key_averages()
        kernels = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]

        def count(*names: str) -> int:
            return sum(event.count for event in events if any(name in event.key for name in names))

        orders = ["self_cuda_time_total"] * self.on_gpu + ["self_cpu_time_total"]
        return {
            "seconds": self.seconds,
            "kernel_seconds": sum(event.self_device_time_total for event in kernels) / 1e6,
            "launches": count("cudaLaunchKernel", "cuLaunchKernel"),
            "synchronisations": count("Synchronize"),
            "operators": count("aten::"),
            "tables": [events.table(sort_by=order, row_limit=DEAREST, max_name_column_width=60) for order in orders],
        }
