"""The YAML files of a backbone under configuration/train."""

from pathlib import Path
from typing import Any

import yaml


RECIPES = Path(__file__).parents[2] / "configuration" / "train"


def read_recipe(backbone: str, name: str) -> dict[str, Any]:
    """A file of the backbone's recipes: `stage1`, `stage2` or `world`; empty if there is none."""
    path = RECIPES / backbone / f"{name}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
