"""Configuration of a LLaVA whose visual tokens are given the norm of text (paper section 5, Eq. 11-12).

The fields are orthogonal; `configuration/methods.yaml` names the combinations that the study compares.
"""

import math
import os
from typing import Any

import transformers
from transformers.utils.versions import require_version


require_version("transformers>=5.0")  # before an import that older versions lack

from transformers import LlavaConfig  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)


# Where versions differ.
_MINOR = tuple(map(int, transformers.__version__.split(".")[:2]))
NESTED_TOWERS = _MINOR < (5, 6)  # CLIP and SigLIP hold their tower in a module `vision_model`
PALIGEMMA_DIVIDES = _MINOR < (5, 13)  # PaliGemma divides what leaves its connector by sqrt(D)

_CHOICES = {
    "projector_norm": ("none", "layernorm", "rmsnorm"),
    "norm_init": ("text", "ones"),
    "norm_target": ("text", "stream"),
    "norm_parametrization": ("absolute", "relative"),
}
_MEASURED = {"text": "text_norm", "stream": "stream_norm"}  # target -> the field that, times `target_scale`, it is
# Fields that define what the saved tensors of a norm mean: with another value they would compute something else.
_MEANING = (
    "projector_norm",
    "norm_init",
    "norm_target",
    "norm_parametrization",
    "norm_eps",
    "target_scale",
    "text_norm",
    "stream_norm",
    "stream_layer",
)
_COMPENSATION = ("compensation_exponent", "compensation_eps")
# Fields of earlier checkpoints that nothing reads now, with the value at which they changed nothing.
_DROPPED = {"projector_init": "default", "projector_scale": 1.0, "norm_gain": "vector", "compensation_max": None}


def answers_about_images(model_type: str, name: str) -> None:
    """Enter a class where pipelines and `transformers serve` look up what it can do."""
    for names in (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES):
        names[model_type] = name


class AlignedLlavaConfig(LlavaConfig):
    """`LlavaConfig` plus the norm on the projector's output; the defaults are the paper's full method, `norm-gwc`.

    Args:
        method: name of the method that the checkpoint was made for; None for a combination without a name.
        projector_norm: "none" (plain LLaVA), "layernorm" or "rmsnorm" (no centring, no bias).
        norm_init: "text" starts the gain at `target / sqrt(d)`, so that every visual token has the target's norm
            (Eq. 11); "ones" is torch's default (the ablation of Table 5).
        norm_target: "text": the target is `target_scale * text_norm`; "stream": `target_scale * stream_norm`.
        stream_layer: the decoder layer at whose input `stream_norm` is measured, from 1.
        norm_parametrization: "absolute" trains the gain itself; "relative" trains a factor that starts at 1 and is
            multiplied by the constant `target / sqrt(d)`.
        norm_eps: epsilon of the norm.
        text_norm: `s`, the mean L2 norm of the non-zero text embeddings; None: measured when the norm is initialised.
        stream_norm: the mean L2 norm of the hidden states of text that enter decoder layer `stream_layer`, measured by
            assembly on training text.
        target_scale: factor k included in `target`.
        compensation_exponent: strength of Global Weight Compensation: the gradient flowing back through the norm is
            multiplied by `1 / max(mean|gain|, compensation_eps) ** exponent` (Eq. 12 is exponent 1; 0 is off).
        compensation_eps: lower limit of mean|gain| (public descriptions of the paper give 1e-3).

    Raises:
        ValueError: a field is out of range; one line names it.
    """

    model_type = "aligned_llava"

    # LlavaConfig accepts dicts and None for its own fields; its __post_init__ turns them into configs.
    vision_config: Any = None
    text_config: Any = None

    method: str | None = None
    projector_norm: str = "layernorm"
    norm_init: str = "text"
    norm_target: str = "text"
    stream_layer: int = 1
    norm_parametrization: str = "absolute"
    norm_eps: float = 1e-5
    text_norm: float | None = None
    stream_norm: float | None = None
    target_scale: float = 1.0
    compensation_exponent: float = 1.0
    compensation_eps: float = 1e-3

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.check_alignment()

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """Like the parent method; fields given here (through `from_pretrained`) switch a `baseline` to another method.

        Raises:
            ValueError: a field is out of range, or would change what the tensors of the checkpoint mean.
        """
        fields = (*_MEANING, *_COMPENSATION)
        saved = {name: config_dict.get(name, getattr(cls, name)) for name in fields}
        result = super().from_dict(config_dict, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        config.check_alignment()
        changed = [name for name in fields if saved[name] is not None and getattr(config, name) != saved[name]]
        if "none" not in (saved["projector_norm"], config.projector_norm):
            for name in (name for name in changed if name in _MEANING):
                raise ValueError(
                    f"{name} cannot change from {saved[name]!r} to {getattr(config, name)!r}: the checkpoint holds a "
                    "norm whose tensors would mean something else; switch from a baseline checkpoint"
                )
        relative = config.norm_parametrization == "relative"  # the target is in no tensor
        if relative and "none" not in (saved["projector_norm"], config.projector_norm) and config.target is None:
            measured = _MEASURED[config.norm_target]
            raise ValueError(f"the config holds no {measured}, on which its norm depends; copy config.json again")
        if changed and "method" not in kwargs:
            config.method = None  # the combination no longer has a name
        return result

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
        """Like the parent method, but rejects other model types.

        transformers would only warn, and fill the model with random weights.

        Raises:
            ValueError: the configuration has another model type; one line names both.
        """
        settings, _ = cls.get_config_dict(pretrained_model_name_or_path, *args, **kwargs)
        if (model_type := settings.get("model_type")) != cls.model_type:
            raise ValueError(
                f"{pretrained_model_name_or_path} holds a {model_type or 'nameless'} model, not {cls.model_type}: "
                "make one with python -m modeling_aligned_llava.assembly"
            )
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    @property
    def starts_at_target(self) -> bool:
        """Whether the initial norm depends on `target`."""
        return self.projector_norm != "none" and (self.norm_init == "text" or self.norm_parametrization == "relative")

    @property
    def needs_text_norm(self) -> bool:
        """Whether the initial norm depends on `text_norm`."""
        return self.starts_at_target and self.norm_target == "text"

    @property
    def needs_stream_norm(self) -> bool:
        """Whether the initial norm depends on `stream_norm`."""
        return self.starts_at_target and self.norm_target == "stream"

    @property
    def target(self) -> float | None:
        """The initial L2 norm of visual tokens; None while the norm that it depends on has not been measured."""
        norm = getattr(self, _MEASURED[self.norm_target])
        return None if norm is None else self.target_scale * norm

    def check_alignment(self) -> None:
        """Raise a one-line `ValueError` if a field of the norm is out of range."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name in ("norm_eps", "target_scale", "compensation_eps"):
            if not _is_number(getattr(self, name)) or getattr(self, name) <= 0:
                raise ValueError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        for name in ("text_norm", "stream_norm"):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or value <= 0):
                raise ValueError(f"{name} must be a number above 0 or null, not {value!r}")
        if not isinstance(self.stream_layer, int) or isinstance(self.stream_layer, bool) or self.stream_layer < 1:
            raise ValueError(f"stream_layer must be a whole number from 1, not {self.stream_layer!r}")
        if not _is_number(self.compensation_exponent) or not 0 <= self.compensation_exponent <= 1:
            raise ValueError(f"compensation_exponent must be from 0 to 1, not {self.compensation_exponent!r}")
        if self.norm_parametrization == "relative" and self.norm_init != "text":
            raise ValueError("norm_parametrization 'relative' starts at the text norm: norm_init must be 'text'")
        bias = self.projector_norm == "layernorm"
        dropped = _DROPPED if self.projector_norm == "none" else {**_DROPPED, "norm_bias": bias}
        for name, default in dropped.items():
            if getattr(self, name, default) != default:
                raise ValueError(f"{name} {getattr(self, name)!r} is no longer supported; only {default!r} is")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


__all__ = ["AlignedLlavaConfig"]


answers_about_images(AlignedLlavaConfig.model_type, "AlignedLlavaForConditionalGeneration")
