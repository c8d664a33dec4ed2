"""Models of other families with the norm of the paper on their connector; the file is saved beside their weights.

`AlignedX` is transformers' class X, which would load such a folder without its norm. The Auto classes find it by the
`auto_map` of the config.
"""

from functools import cache
from typing import Any

from .configuration_aligned_llava import AlignedLlavaConfig  # first: it names the transformers that the rest needs


# isort: split
import transformers
from torch import Tensor, nn
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from .hub_folder import missing_tensors
from .modeling_aligned_llava import build_norm, forget_absent_layers
from .norm_alignment import GlobalWeightCompensatedLayerNorm


NORM = "alignment_norm"  # the submodule of the connector, and the settings in the config
CONNECTOR = "connector"  # among the settings: its path below `base_model`


class _Aligned:
    """What `aligned_class` adds to a class of transformers."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]  # of the class it is mixed into
        attach_norm(self)
        forget_absent_layers(self)

    @classmethod
    def from_pretrained(cls, source: Any, *args: Any, **kwargs: Any) -> Any:
        """Like the parent method, but requires all tensors: transformers would only warn.

        Raises:
            OSError: the checkpoint lacks some.
        """
        reports = kwargs.pop("output_loading_info", False)
        model, report = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)  # type: ignore[misc]
        if report["missing_keys"] and not reports:
            raise missing_tensors(source, report["missing_keys"])
        return (model, report) if reports else model

    @classmethod
    def is_custom_code(cls) -> bool:
        return False  # else transformers would not translate the family's tensor names between Hub and memory

    def _init_weights(self, module: nn.Module) -> None:
        # transformers resets every module whose class name contains "LayerNorm" to a gain of 1.
        if isinstance(module, GlobalWeightCompensatedLayerNorm):
            module.reset_parameters()
        else:
            super()._init_weights(module)  # type: ignore[misc]


def attach_norm(model: Any) -> GlobalWeightCompensatedLayerNorm | None:
    """Put the norm that `model.config.alignment_norm` describes on the output of the connector; None without one."""
    settings = dict(getattr(model.config, NORM))
    connector = model.base_model.get_submodule(settings.pop(CONNECTOR))
    norm = build_norm(AlignedLlavaConfig(**settings), model.get_input_embeddings().embedding_dim)
    if norm is not None:
        connector.add_module(NORM, norm.to(next(connector.parameters()).device).train(connector.training))
        connector.register_forward_hook(_normalise)
        # For AutoModel and vLLM, which would build the plain model; saving adds the class itself.
        headless = type(model).__name__.removeprefix("Aligned").replace("ForConditionalGeneration", "Model")
        model.config.auto_map = {"AutoModel": f"{__name__.rpartition('.')[2]}.Aligned{headless}"}
    return norm


def _normalise(connector: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook, [..., D] -> [..., D]; looks the norm up, so that a copied model calls its own norm."""
    return connector.get_submodule(NORM)(output)


@cache
def aligned_class(plain: Any) -> Any:
    """`AlignedX` for a model class X of transformers."""
    kept = [*(getattr(plain, "_keep_in_fp32_modules_strict", None) or ()), NORM]
    own = {"__module__": __name__, "__doc__": _Aligned.__doc__, "_keep_in_fp32_modules_strict": kept}
    made: Any = type(f"Aligned{plain.__name__}", (_Aligned, plain), own)
    if (names := get_checkpoint_conversion_mapping(plain.__name__)) is not None:
        register_checkpoint_conversion_mapping(made.__name__, names, overwrite=True)
    with_head = plain.__name__.endswith("ForConditionalGeneration")
    made.register_for_auto_class("AutoModelForImageTextToText" if with_head else "AutoModel")
    return made


def __getattr__(name: str) -> Any:
    """`AlignedX`, which the Auto classes ask for by its name."""
    plain = getattr(transformers, name.removeprefix("Aligned"), None) if name.startswith("Aligned") else None
    if plain is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return aligned_class(plain)
