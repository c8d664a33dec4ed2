"""Norm-aligned LLaVA (arXiv 2512.08374): importing this registers it with transformers' Auto classes.

Names are loaded on first use, so that the light parts (errors, methods, templates) do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import register_when_transformers_is_imported


if TYPE_CHECKING:
    from .configuration_aligned_llava import AlignedLlavaConfig
    from .connectors import align, load_aligned
    from .methods import method_fields, method_names
    from .modeling_aligned_llava import AlignedLlavaForConditionalGeneration, AlignedLlavaModel
    from .norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm

_HOMES = {
    "AlignedLlavaConfig": "configuration_aligned_llava",
    "AlignedLlavaForConditionalGeneration": "modeling_aligned_llava",
    "AlignedLlavaModel": "modeling_aligned_llava",
    "GlobalWeightCompensatedLayerNorm": "norm_alignment",
    "align": "connectors",
    "load_aligned": "connectors",
    "mean_embedding_norm": "norm_alignment",
    "method_fields": "methods",
    "method_names": "methods",
}

__all__ = [
    "AlignedLlavaConfig",
    "AlignedLlavaForConditionalGeneration",
    "AlignedLlavaModel",
    "GlobalWeightCompensatedLayerNorm",
    "align",
    "load_aligned",
    "mean_embedding_norm",
    "method_fields",
    "method_names",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


register_when_transformers_is_imported()
