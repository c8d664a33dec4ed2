"""Settings that are JSON objects on the command line, and mappings in YAML."""

import json
from typing import Any

from modeling_aligned_llava.errors import UserError


def json_object(value: dict | str | None, name: str) -> dict[str, Any] | None:
    """A setting given as a mapping or as the text of a JSON object; None if it is not given.

    Raises:
        UserError: it is neither.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise UserError(f"{name}: {value!r} is not JSON ({error})") from error
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{name} must be a JSON object, not {value!r}")
    return value
