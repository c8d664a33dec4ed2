"""`--device auto`."""

import torch


def resolve_device(device: str) -> str:
    """`cuda` if "auto" is asked for and there is a GPU, `cpu` without one; any other name as it is."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
