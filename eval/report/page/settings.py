"""Settings, versions and hardware of the run, from run.json and the recipes, without paths of this machine."""

from typing import Any

from eval.report.card import SETTINGS, stage_settings
from eval.report.finished_run import FinishedRun, without_paths


def settings(run: FinishedRun) -> dict[str, list[list[Any]]]:
    """Title -> lines of (name, value); parts that are not recorded are left out."""
    record = run.record
    parts: dict[str, list[list[Any]]] = {}
    if not record:
        return parts
    parts["Evaluation"] = [[name, _shown(value)] for name, value in record["settings"].items()]
    parts["Versions"] = [[name, version] for name, version in record["versions"].items()]
    parts["Versions"].append(["code", record["code"] or "not recorded"])
    parts["Hardware"] = [[name, _shown(value)] for name, value in record["hardware"].items()]
    parts["Checkpoints (sha256)"] = [[name, model["sha256"]] for name, model in record["models"].items()]
    parts["Data (rows, sha256)"] = [
        [key, f"{task['rows']:,} rows, {task['sha256']}"] for key, task in record["data"]["tasks"].items()
    ]
    return parts


def recipes(run: FinishedRun) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a table of training settings, one column per model and stage; no lines without settings."""
    columns = {}
    for model in run.models:
        checkpoint = run.checkpoint(model.name)
        for stage, found in (stage_settings(checkpoint) if checkpoint else {}).items():
            columns[f"{model.name}, {stage}"] = found
    lines = [
        [name.replace("_", " "), *(_shown(column.get(name)) for column in columns.values())]
        for name in SETTINGS
        if any(name in column for column in columns.values())
    ]
    return ["setting", *columns], lines


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "none"
    return without_paths(", ".join(map(str, value)) if isinstance(value, list) else str(value))
