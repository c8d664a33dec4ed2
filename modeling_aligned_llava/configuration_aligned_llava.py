"""Configuration of a LLaVA model whose visual tokens are given the norm of text (paper section 5, Eq. 11-12).

The fields below are orthogonal; `configuration/methods.yaml` names the combinations that are the arms of a study.
"""

import math
import os
from typing import Any

from transformers.utils.versions import require_version


require_version("transformers>=5.20")  # before anything that older versions lack

from transformers import LlavaConfig  # noqa: E402


# The names in configuration/methods.yaml, which does not travel with the weights.
METHODS = ("baseline", "norm", "norm-gwc", "norm-default-init", "norm-relative")
_CHOICES = {
    "projector_norm": ("none", "layernorm"),
    "norm_init": ("text", "ones"),
    "norm_parametrization": ("absolute", "relative"),
}


class AlignedLlavaConfig(LlavaConfig):
    """`LlavaConfig` plus the norm behind the projector; the defaults are the paper's full method, `norm-gwc`.

    Args:
        method: name of the arm this checkpoint belongs to, recorded at assembly; None for a free combination.
        projector_norm: "none" (plain LLaVA) or "layernorm".
        norm_init: "text" starts the gain at `target_scale * text_norm / sqrt(d)`, so that every visual token has the
            norm of text (Eq. 11); "ones" is torch's default (the ablation of Table 5).
        norm_parametrization: "absolute" learns the gain itself; "relative" learns a factor that starts at 1 and is
            multiplied by the constant `target_scale * text_norm / sqrt(d)`.
        norm_eps: epsilon of the LayerNorm.
        text_norm: the measured mean L2 norm `s` of the non-zero text embeddings; None: measured when the norm is
            initialised.
        target_scale: k; visual tokens start at norm `k * s`.
        compensation_exponent: strength of Global Weight Compensation: the gradient behind the norm is multiplied by
            `1 / max(mean|gain|, compensation_eps) ** exponent` (Eq. 12 is exponent 1; 0 is off).
        compensation_max: upper limit of that factor; None: no limit.
        compensation_eps: lower limit of mean|gain| (the paper does not say).

    Raises:
        ValueError: a field is out of its range; one line names it.
    """

    model_type = "aligned_llava"

    # The types of LlavaConfig's own fields allow dicts and None, which its __post_init__ turns into configs.
    vision_config: Any = None
    text_config: Any = None

    method: str | None = None
    projector_norm: str = "layernorm"
    norm_init: str = "text"
    norm_parametrization: str = "absolute"
    norm_eps: float = 1e-5
    text_norm: float | None = None
    target_scale: float = 1.0
    compensation_exponent: float = 1.0
    compensation_max: float | None = None
    compensation_eps: float = 1e-6

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.check_alignment()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
        """As transformers' own, which would only warn of another architecture and fill the model with random weights.

        Raises:
            ValueError: the configuration is not of this model type; one line names both.
        """
        found, _ = cls.get_config_dict(pretrained_model_name_or_path, *args, **kwargs)
        if (model_type := found.get("model_type")) != cls.model_type:
            raise ValueError(
                f"{pretrained_model_name_or_path} holds a {model_type or 'nameless'} model, not {cls.model_type}: "
                "make one with python -m modeling_aligned_llava.assembly"
            )
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    @property
    def needs_text_norm(self) -> bool:
        """Whether the start of the norm depends on `text_norm`."""
        return self.projector_norm != "none" and (self.norm_init == "text" or self.norm_parametrization == "relative")

    def check_alignment(self) -> None:
        """Raise a one-line `ValueError` if a field of the norm is out of its range."""
        if self.method is not None and self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}; known methods: {', '.join(METHODS)}, or null")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name in ("norm_eps", "target_scale", "compensation_eps"):
            if not _is_number(getattr(self, name)) or getattr(self, name) <= 0:
                raise ValueError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        for name in ("text_norm", "compensation_max"):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or value <= 0):
                raise ValueError(f"{name} must be a number above 0 or null, not {value!r}")
        if not _is_number(self.compensation_exponent) or not 0 <= self.compensation_exponent <= 1:
            raise ValueError(f"compensation_exponent must be from 0 to 1, not {self.compensation_exponent!r}")
        if self.norm_parametrization == "relative" and self.norm_init != "text":
            raise ValueError("norm_parametrization 'relative' starts at the text norm: norm_init must be 'text'")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


__all__ = ["AlignedLlavaConfig"]
