"""`--device auto` and `--dtype auto`."""

import torch


def resolve_device(device: str) -> str:
    """`cuda` if "auto" is asked for and there is a GPU, `cpu` without one; any other name as it is."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def resolve_dtype(dtype: str, device: str) -> str:
    """`bfloat16` on a GPU and `float32` without one if "auto" is asked for: one precision for all models of a run."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if resolve_device(device).startswith("cuda") else "float32"
