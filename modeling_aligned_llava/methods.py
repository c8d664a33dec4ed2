"""The named arms of a study: `configuration/methods.yaml`, method name -> fields of `AlignedLlavaConfig`."""

from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any

import yaml

from .configuration_aligned_llava import METHODS, AlignedLlavaConfig
from .errors import UserError


@cache
def _methods() -> dict[str, dict[str, Any]]:
    # A wheel carries the file inside the package (pyproject.toml, force-include); a clone has it in configuration/.
    here = Path(__file__).resolve().parent
    packaged = here / "methods.yaml"
    path = packaged if packaged.exists() else here.parent / "configuration" / "methods.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def method_names() -> list[str]:
    """The known methods, in the order of the file."""
    return list(_methods())


def method_fields(name: str) -> dict[str, Any]:
    """All fields of `AlignedLlavaConfig` that make up the method, its own name under `method` included.

    Fields that the file leaves out have their default, so that `from_pretrained(path, **method_fields(name))` leaves
    nothing of another arm behind. The measured norms are no part of a method.

    Raises:
        UserError: the method is not known; the message lists those that are, or says where its name is missing.
    """
    if name not in _methods():
        raise UserError(f"unknown method {name!r}; known methods: {', '.join(method_names())}")
    if name not in METHODS:
        raise UserError(
            f"method {name!r} is in methods.yaml; add its name to METHODS in configuration_aligned_llava.py"
        )
    own = get_annotations(AlignedLlavaConfig).keys() - {"vision_config", "text_config", "text_norm", "visual_norm"}
    defaults = {field: getattr(AlignedLlavaConfig, field) for field in sorted(own)}
    return {**defaults, "method": name, **_methods()[name]}
