"""Reads the JSON of a profile, for the commands that compare and draw."""

from pathlib import Path
from typing import Any

from eval.diagnostics.profile import SCHEMA
from eval.suite.files import read_json
from modeling_aligned_llava.errors import UserError


def read_profile(path: Path) -> dict[str, Any]:
    """The profile in a file.

    Raises:
        UserError: there is no such file, it is no profile, or one of another schema version.
    """
    try:
        content = read_json(path)
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if content is None:
        raise UserError(f"there is no profile {path}; `python -m eval.diagnostics profile ... --json` writes one")
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{path} is no profile of schema version {SCHEMA}; measure it anew")
    return content


def attribution_of(profile: dict[str, Any]) -> dict[str, Any]:
    """The attribution of a profile, known in every layer.

    Raises:
        UserError: no picture had both visual and text tokens, or tokens of zeros have no angle.
    """
    terms = profile.get("attribution")
    if terms is None or None in terms["total"]["value"]:
        raise UserError(f"the profile of {profile['model']} has no angles to compare: tokens are absent or zero")
    return terms
