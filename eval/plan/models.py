"""The models of a run: given on the command line, trained in it, or those of a finished one."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.checkpoint import sees_images
from modeling_aligned_llava.loading.files import read_json


@dataclass(frozen=True)
class Model:
    """A checkpoint: `name` is that of the run's folders; backbone, method and seed are those of the tables.

    `multimodal` is false for a bare decoder.
    """

    name: str
    backbone: str
    method: str
    seed: int | None
    folder: Path = Path()
    multimodal: bool = True

    @property
    def is_trained(self) -> bool:
        """Whether its last training stage has finished."""
        return (self.folder / "training_complete.json").is_file()


Models = dict[str, Model]  # by name, in the order of the tables


def read_models(arguments: list[str], backbone: str | None, seed: int | None) -> Models:
    """The models of the command line.

    Raises:
        UserError: an argument is not NAME=PATH, a name is given twice, or a folder is not a checkpoint that can be
            served.
    """
    models: Models = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not re.fullmatch(r"[\w.+-]+", name) or not path:
            raise UserError(f"--models {argument}: expected NAME=PATH, the name of letters, digits and . + - _")
        if name in models:
            raise UserError(f"--models: {name} is given twice")
        folder = Path(path).resolve()
        config = read_json(folder / "config.json")
        if config is None or not any(folder.glob("*.safetensors")):
            raise UserError(f"--models {name}: no checkpoint (config.json and *.safetensors) in {path}")
        text = config.get("text_config", config)
        source = text.get("_name_or_path") or config.get("_name_or_path") or text["model_type"]
        seeded = re.fullmatch(r"(.+)-seed(\d+)", name)
        method, seed_of_name = (seeded[1], int(seeded[2])) if seeded else (name, seed)
        models[name] = Model(name, backbone or Path(source).name, method, seed_of_name, folder, sees_images(folder))
    return models


def choose_baseline(models: Models, asked: str | None) -> str:
    """The method that others are compared with: the one asked for, or the first.

    Raises:
        UserError: there is no such method among the models.
    """
    methods = [model.method for model in models.values()]
    if asked is not None and asked not in methods:
        raise UserError(f"--baseline {asked}: not among the models ({', '.join(methods)})")
    return asked or methods[0]


# Of a finished run: where things were recorded, or in its folder if that is gone.


def read_record(run: Path) -> dict[str, Any]:
    """The run's run.json, empty if there is none."""
    return read_json(run / "run.json") or {}


def find_checkpoint(run: Path, record: dict[str, Any], name: str) -> Path | None:
    """A model's checkpoint: where it was evaluated, or its last stage in the run's folder."""
    recorded = record.get("models", {}).get(name, {}).get("path")
    return _first_folder(recorded, run / "checkpoints" / name / "stage2")


def find_data_root(run: Path, record: dict[str, Any]) -> Path | None:
    """The data root that was evaluated, or the one inside the run."""
    return _first_folder(record.get("data", {}).get("root"), run / "data" / "mirrors")


def _first_folder(recorded: str | None, inside: Path) -> Path | None:
    candidates = [*([Path(recorded)] if recorded else []), inside]
    return next((folder for folder in candidates if folder.is_dir()), None)
