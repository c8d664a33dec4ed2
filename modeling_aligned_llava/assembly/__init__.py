"""Make a checkpoint from two backbones."""

from .from_backbones import assemble


__all__ = ["assemble"]
