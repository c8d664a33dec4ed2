"""Norm-aligned LLaVA (arXiv 2512.08374). The first use of a name below registers the model with the Auto classes.

Importing the package imports nothing else: torch and transformers take seconds, and a command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from .alignment import align, load_aligned
    from .configuration_aligned_llava import AlignedLlavaConfig
    from .inspection.text_stream import mean_stream_norm
    from .methods import method_fields, method_names
    from .modeling_aligned_llava import AlignedLlavaForConditionalGeneration, AlignedLlavaModel
    from .norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm

_MODULES = {
    "AlignedLlavaConfig": "configuration_aligned_llava",
    "AlignedLlavaForConditionalGeneration": "modeling_aligned_llava",
    "AlignedLlavaModel": "modeling_aligned_llava",
    "GlobalWeightCompensatedLayerNorm": "norm_alignment",
    "align": "alignment",
    "load_aligned": "alignment",
    "mean_embedding_norm": "norm_alignment",
    "mean_stream_norm": "inspection.text_stream",
    "method_fields": "methods",
    "method_names": "methods",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.loading.registration")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = [
    "AlignedLlavaConfig",
    "AlignedLlavaForConditionalGeneration",
    "AlignedLlavaModel",
    "GlobalWeightCompensatedLayerNorm",
    "align",
    "load_aligned",
    "mean_embedding_norm",
    "mean_stream_norm",
    "method_fields",
    "method_names",
]
