"""Make checkpoints: `assemble` from two backbones, `convert` from a LLaVA."""

from .from_backbones import assemble
from .from_llava import convert


__all__ = ["assemble", "convert"]
