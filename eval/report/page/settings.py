"""What was run, on what and with what, for the foot of the report: run.json and the recipes, without machine paths."""

from typing import Any

from eval.report.card import SETTINGS, stage_settings
from eval.report.finished_run import FinishedRun, without_paths


def settings(run: FinishedRun) -> dict[str, list[list[Any]]]:
    """Title -> lines of (name, value); a part that is not recorded is left out."""
    record = run.record
    parts: dict[str, list[list[Any]]] = {}
    if not record:
        return parts
    parts["Evaluation"] = [[name, _shown(value)] for name, value in record["settings"].items()]
    parts["Versions"] = [[name, version] for name, version in record["versions"].items()]
    parts["Versions"].append(["code", record["code"] or "not recorded"])
    parts["Hardware"] = [[name, _shown(value)] for name, value in record["hardware"].items()]
    parts["Checkpoints (sha256)"] = [[name, arm["sha256"]] for name, arm in record["models"].items()]
    parts["Data (rows, sha256)"] = [
        [key, f"{task['rows']:,} rows, {task['sha256']}"] for key, task in record["data"]["tasks"].items()
    ]
    return parts


def recipes(run: FinishedRun) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of a table of the training settings, one column an arm and stage; no lines without any."""
    columns = {}
    for arm in run.arms:
        checkpoint = run.checkpoint(arm.name)
        for stage, found in (stage_settings(checkpoint) if checkpoint else {}).items():
            columns[f"{arm.name}, {stage}"] = found
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
