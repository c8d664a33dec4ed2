"""The cells of a study, from its YAML file: method x seed x settings (docs/contributing.md).

An *arm* is a method with settings; a *cell* is an arm with a seed: one training run, and its evaluation.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from eval.options import read_recipe
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.methods import method_fields


HELD_OUT = 256  # rows
INFORMATION = "information"
MEASURES = ("held_out_loss", INFORMATION, "full")
PROJECTOR = "multi_modal_projector"
RATE, STEPS = "rate", "steps"  # settings of the study: factors on the recipe's values
_NEEDED = {"question", "predictions", "analysis", "seeds", "reference", "arms"}
_KEYS = {*_NEEDED, "backbone", "rates_from", "settings", "contrasts"}
_ARM_KEYS = {"methods", "vary", "settings", "measure", "stages"}
_STAGES = ("stage1", "stage2")


@dataclass(frozen=True)
class Arm:
    """A method with settings.

    Attributes:
        method: its name.
        levels: axis -> level, as text: what distinguishes the arm from others of its method.
        settings: of `train.sft` in every stage, and `rate` and `steps`.
        stages: those that are trained.
        measure: beside the held-out loss; "full" runs the benchmarks on the last stage.
    """

    method: str
    levels: dict[str, str]
    settings: dict[str, Any]
    stages: tuple[str, ...]
    measure: str

    @property
    def evaluated(self) -> bool:
        return self.measure == "full"

    @property
    def label(self) -> str:
        """The arm in tables and figures: `norm, rate 0.3`."""
        return ", ".join([self.method, *(f"{axis} {level}" for axis, level in self.levels.items())])


@dataclass(frozen=True)
class Cell:
    """An arm with a seed."""

    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """The cell in file names."""
        return f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', self.arm.label)}-seed{self.seed}"


@dataclass(frozen=True)
class Study:
    """A question and its cells.

    Attributes:
        name: of the file.
        reference: the method that others are compared with: its arm with the most levels in common and no other.
        rates_from: the study that chose each method's rate.
        contrasts: name -> weight of each arm's held-out loss, by label.
    """

    name: str
    question: str
    predictions: dict[str, str]
    analysis: str
    backbone: str
    seeds: list[int]
    reference: str
    rates_from: str | None
    arms: list[Arm] = field(default_factory=list)
    contrasts: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def cells(self) -> list[Cell]:
        """Seed by seed, so that every arm has a result early."""
        return [Cell(arm, seed) for seed in self.seeds for arm in self.arms]

    @property
    def evaluated(self) -> bool:
        return any(arm.evaluated for arm in self.arms)


def read_study(path: Path, to_run: bool = True) -> Study:
    """Read and check a study; one that only has records (not `to_run`) may name methods that are gone.

    Raises:
        UserError: the file is not there or not a study; one line says what is wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict) or not content.keys() <= _KEYS:
        unknown = sorted(map(str, content.keys() - _KEYS)) if isinstance(content, dict) else []
        raise UserError(f"{path}: {f'unknown key {unknown[0]}' if unknown else 'no study'}; keys: {_names(_KEYS)}")
    if missing := sorted(_NEEDED - content.keys()):
        raise UserError(f"{path}: {missing[0]} is missing")
    backbone = content.get("backbone", "tinyworld")
    if not read_recipe(backbone, "world"):
        raise UserError(f"{path}: configuration/train has no world.yaml, from which data is made, of {backbone}")
    seeds = content["seeds"]
    if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise UserError(f"{path}: seeds must be a list of whole numbers, not {seeds!r}")
    arms = [arm for entry in content["arms"] for arm in _arms(path, entry, content.get("settings", {}), to_run)]
    labels = [arm.label for arm in arms]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"{path}: there are two arms {label!r}")
    methods = dict.fromkeys(arm.method for arm in arms)
    if content["reference"] not in methods:
        raise UserError(f"{path}: reference {content['reference']!r} is none of the methods {', '.join(methods)}")
    return Study(
        path.stem,
        content["question"],
        content["predictions"],
        content["analysis"],
        backbone,
        seeds,
        content["reference"],
        content.get("rates_from"),
        arms,
        {name: _contrast(path, name, given, labels) for name, given in content.get("contrasts", {}).items()},
    )


def _contrast(path: Path, name: str, given: Any, labels: list[str]) -> dict[str, int]:
    """Label -> weight: 1 for the arms under `plus`, -1 for those under `minus`."""
    if not isinstance(given, dict) or given.keys() != {"plus", "minus"}:
        raise UserError(f"{path}: contrast {name!r} must have plus and minus, lists of arms")
    if unknown := [label for label in [*given["plus"], *given["minus"]] if label not in labels]:
        raise UserError(f"{path}: contrast {name!r}: no arm {unknown[0]!r}; there are: {'; '.join(labels)}")
    return dict.fromkeys(given["plus"], 1) | dict.fromkeys(given["minus"], -1)


def _arms(path: Path, entry: dict[str, Any], shared: dict[str, Any], to_run: bool) -> Iterator[Arm]:
    """The arms of an entry: each method with each combination of levels."""
    if not isinstance(entry, dict) or "methods" not in entry or not entry.keys() <= _ARM_KEYS:
        raise UserError(f"{path}: an entry of arms has methods and some of {_names(_ARM_KEYS)}, not {entry!r}")
    measure, stages = entry.get("measure", "held_out_loss"), tuple(entry.get("stages", _STAGES))
    if measure not in MEASURES:
        raise UserError(f"{path}: measure must be one of {', '.join(MEASURES)}, not {measure!r}")
    if stages not in (_STAGES, _STAGES[:1]) or (measure == "full" and stages != _STAGES):
        raise UserError(f"{path}: stages must be [stage1] or [stage1, stage2], and both for measure full")
    axes = {axis: _levels(path, axis, given) for axis, given in entry.get("vary", {}).items()}
    for method in entry["methods"]:
        for combination in product(*axes.values()):
            levels = dict(zip(axes, (label for label, _ in combination), strict=True))
            settings = _merged([shared, entry.get("settings", {}), *(chosen for _, chosen in combination)])
            if to_run:
                method_fields(method, settings.get("norm_fields"))
            if settings.get("bypassed_layers") and measure == "full":
                raise UserError(f"{path}: bypassed_layers are not saved in a model, so measure must be held_out_loss")
            yield Arm(method, levels, settings, stages, measure)


def _levels(path: Path, axis: str, given: Any) -> list[tuple[str, dict[str, Any]]]:
    """Label and settings of each level: a list of values of the setting `axis`, or a mapping to settings."""
    if isinstance(given, list):
        return [(f"{value:g}" if isinstance(value, float) else str(value), {axis: value}) for value in given]
    if isinstance(given, dict) and all(isinstance(settings, dict) for settings in given.values()):
        return [(str(label), settings) for label, settings in given.items()]
    raise UserError(f"{path}: vary {axis} must be a list of values, or a mapping from names to settings")


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Later settings win; `norm_fields` are joined."""
    merged: dict[str, Any] = {}
    for part in parts:
        fields = {**merged.get("norm_fields", {}), **part.get("norm_fields", {})}
        merged = {**merged, **part, **({"norm_fields": fields} if fields else {})}
    return merged


def _names(keys: set[str]) -> str:
    return ", ".join(sorted(keys))


def stage_settings(backbone: str, stage: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """What an arm changes in the recipe of a stage, as settings of `train.sft`.

    `rate` multiplies the learning rates of projector and norm, `steps` the number of steps. Rows are held out, and
    their loss is measured as often as the recipe saves.
    """
    recipe = read_recipe(backbone, stage)
    rate, steps = chosen.get(RATE, 1.0), chosen.get(STEPS, 1.0)
    rates = {
        pattern: value * (rate if PROJECTOR in pattern else 1.0) for pattern, value in recipe["learning_rates"].items()
    }
    save_steps = max(1, round(recipe["save_steps"] * steps))
    return {
        "learning_rates": rates,
        "max_steps": max(1, round(recipe["max_steps"] * steps)),
        "save_steps": save_steps,
        "eval_strategy": "steps",
        "eval_steps": save_steps,
        "eval_rows": HELD_OUT,
        "max_skipped_steps": 1_000_000,  # a run that diverges is a result; the record counts the steps
        **{name: value for name, value in chosen.items() if name not in (RATE, STEPS)},
    }


def words(settings: dict[str, Any]) -> list[str]:
    """Settings as a command line of `train.sft`."""
    found = []
    for name, value in settings.items():
        if isinstance(value, list):
            found += [f"--{name}", *map(str, value)]
        elif isinstance(value, dict | bool):
            found += [f"--{name}", json.dumps(value)]
        else:
            found += [f"--{name}", str(value)]
    return found
