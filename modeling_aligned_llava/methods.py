"""The named methods of the study: `configuration/methods.yaml`, method name -> fields of `AlignedLlavaConfig`.

A norm variant is one entry of that file. The equations of the methods: docs/reference.md.
"""

from collections.abc import Mapping
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any

import yaml

from .errors import UserError, errors_named


_MEASURED = {"text_norm", "stream_norm"}  # belong to a checkpoint, not to a method


@cache
def _methods() -> dict[str, dict[str, Any]]:
    # A wheel carries the file inside the package (pyproject.toml, force-include); a clone has it in configuration/.
    here = Path(__file__).resolve().parent
    packaged = here / "methods.yaml"
    path = packaged if packaged.exists() else here.parent / "configuration" / "methods.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def method_names() -> list[str]:
    """Return the known methods, in the order of the file."""
    return list(_methods())


def method_fields(name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all fields of `AlignedLlavaConfig` that make up the method, with its own name under `method`.

    Fields that the file omits have their defaults, so `from_pretrained(path, **method_fields(name))` keeps nothing of
    the method that a checkpoint was made for. Measured norms are not part of a method.

    Args:
        name: of the method.
        changes: fields that differ from those of the method; the combination then has no name.

    Raises:
        UserError: the method is unknown, or its entry or `changes` have an unknown field or a value out of range.
    """
    from .configuration_aligned_llava import AlignedLlavaConfig  # here: transformers takes seconds

    if name not in _methods():
        raise UserError(f"unknown method {name!r}; known methods: {', '.join(method_names())}")
    known = get_annotations(AlignedLlavaConfig).keys() - {"vision_config", "text_config", "method"} - _MEASURED
    entry = _methods()[name]
    source = f"norm_fields of {name}" if changes else f"methods.yaml: {name}"
    chosen = {**entry, **(changes or {})}
    if unknown := sorted(chosen.keys() - known):
        raise UserError(f"{source}: unknown field {unknown[0]!r}; fields: {', '.join(sorted(known))}")
    defaults = {field: getattr(AlignedLlavaConfig, field) for field in sorted(known)}
    fields = {**defaults, "method": None if changes else name, **chosen}
    with errors_named(source, ValueError):
        AlignedLlavaConfig(**fields)
    return fields
