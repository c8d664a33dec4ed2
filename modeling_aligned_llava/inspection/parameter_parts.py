"""The part of a model that a parameter belongs to: norm, projector, vision, lora (adapters), language (the rest)."""

from dataclasses import dataclass
from typing import Any

from modeling_aligned_llava.aligned_family import NORM
from modeling_aligned_llava.inspection.model_parts import model_parts


PARTS = ("norm", "projector", "vision", "language", "lora")


@dataclass(frozen=True)
class Parts:
    """Tell the part by the parameter's name.

    Args:
        projector: path of the connector in the model.
        vision: that of the vision encoder; the connector may be inside it.
    """

    projector: str = "multi_modal_projector"
    vision: str = "vision_tower"

    @classmethod
    def of(cls, model: Any) -> "Parts":
        """Those of any vision-language model.

        Raises:
            UserError: it has no vision encoder or connector.
        """
        names = model_parts(model).names
        return cls(names["connector"], names.get("vision", names["connector"]))

    def __call__(self, name: str) -> str:
        """The part of the parameter `name`; wrappers may have put names of their own before it."""
        if in_norm(name):
            return "norm"
        if ".lora_" in name:
            return "lora"
        inside = f".{name}"
        return next((part for part in ("projector", "vision") if f".{getattr(self, part)}." in inside), "language")


def in_norm(name: str) -> bool:
    """Whether a parameter belongs to the norm, which is float32 whatever the precision of the rest."""
    return "multi_modal_projector.norm." in name or f".{NORM}." in name
