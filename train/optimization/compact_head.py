"""Logits only where there are labels, on a CPU as on a GPU: behind an image most positions have none."""

from trl.trainer import utils as trl_utils


_with_triton = trl_utils._use_triton


def score_labelled_positions_only(enabled: bool) -> None:
    """Let TRL's fused head score the labelled positions alone (on CUDA it does so anyhow).

    Without Triton TRL scores every position, to spare compiling accelerators a new shape per batch. A CPU has none to
    spare, and the head is half of a small model's step.
    """
    trl_utils._use_triton = lambda device: (enabled and device.type == "cpu") or _with_triton(device)
