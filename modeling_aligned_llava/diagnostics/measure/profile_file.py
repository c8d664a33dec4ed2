"""Reads profiles and the probes of training runs, for the commands that compare and draw them."""

import json
import math
from pathlib import Path
from typing import Any

from modeling_aligned_llava.diagnostics.measure.profile import SCHEMA
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json


def read_profile(path: Path) -> dict[str, Any]:
    """The profile in a file.

    Raises:
        UserError: there is no such file, it is not a profile of this schema version, or it has states that are not
            finite.
    """
    try:
        content = read_json(path)
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if content is None:
        raise UserError(f"there is no profile {path}; `aligned-llava profile ... --json` writes one")
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{path} is not a profile of schema version {SCHEMA}; measure it again")
    layers, stages = content["layers"], content["norms"].values()
    norms = [norm for series in ("visual", "text") if series in layers for norm in layers[series]["norm"]["mean"]]
    if not _are_finite([*norms, *(stage.get("mean") for stage in stages)]) or any(
        stage.get("skipped") for stage in stages
    ):
        raise UserError(f"{path}: the states of {content['model']} were not finite; measure it again")
    return content


def _are_finite(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def attribution_of(profile: dict[str, Any]) -> dict[str, Any]:
    """The attribution of a profile; it has a value in every layer.

    Raises:
        UserError: no image had both visual and text tokens, or tokens are all zero and have no angle.
    """
    terms = profile.get("attribution")
    if terms is None or None in terms["total"]["value"]:
        raise UserError(f"the profile of {profile['model']} has no angles to compare: tokens are missing or zero")
    return terms


def read_training(path: Path) -> list[dict[str, Any]]:
    """The lines of a `probe.jsonl`.

    Raises:
        UserError: the file is missing, empty or damaged.
    """
    if not path.is_file():
        raise UserError(f"--training: there is no file {path}")
    lines = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
        probed = [record for record in lines[-1].values() if isinstance(record, dict)]
        if not _are_finite([value for record in probed for value in record["norm"] + record["cosine"]]):
            raise UserError(f"{path}, line {number}: the states of this model were not finite")
    if not lines:
        raise UserError(f"{path} is empty: training wrote no probe")
    return lines
