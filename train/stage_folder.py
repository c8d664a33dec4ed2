"""The output folder of one training stage: its settings, its checkpoints, and whether it is complete.

Light on purpose: a finished stage must be recognised without importing torch.
"""

import json
import shutil
import sys
from ast import literal_eval
from contextlib import suppress
from pathlib import Path
from typing import Any

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json, write_json
from train.settings import AUTO, with_method


# Settings that may change between two starts of the same run, because they do not affect its weights. The global batch
# is kept when the micro-batch changes, so that a run that ran out of memory can go on with a smaller one.
_FREE = {
    *("output_dir", "logging_steps", "save_steps", "save_total_limit", "report_to", "eval_steps"),
    *("per_device_train_batch_size", "micro_batch_tokens", "per_device_eval_batch_size"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "ddp_timeout", "ddp_find_unused_parameters"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
    *("dataloader_persistent_workers", "probe_rows"),
    *("data_cache", "bad_rows_limit", "max_skipped_steps", "compile_layers", "use_kernels"),
}

ROWS = "rows_fingerprint"  # in settings.json


class StageFolder:
    """`<output_dir>`: `settings.json`, `checkpoint-N/`, and at the end the model and `training_complete.json`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.settings_file = self.path / "settings.json"
        self.marker = self.path / "training_complete.json"

    def is_complete(self) -> bool:
        """Whether the final model is complete; the marker is written after it."""
        return self.marker.exists()

    def already_done(self, settings: dict[str, Any]) -> str:
        """What to say of a finished stage: also whether its data was written after it."""
        data = Path(str(settings.get("data_path", "")))
        newer = data.is_file() and data.stat().st_mtime > self.marker.stat().st_mtime
        before = f", before {data} was written: remove it to train again" if newer else ""
        return f"{self.path}: already done{before}"

    def mark_complete(self, record: dict[str, Any]) -> None:
        """Mark the stage as finished, then remove the checkpoints, which hold the optimizer's state."""
        write_json(self.marker, record)
        self.drop_checkpoints()

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints and the remains of an interrupted final save."""
        for folder in (*self.path.glob("checkpoint-*"), self.path / ".final"):
            shutil.rmtree(folder, ignore_errors=True)

    def changed_settings(self, settings: dict[str, Any]) -> list[str]:
        """The differences from the settings this folder was started with, one phrase per setting."""
        if not (before := self.recorded_settings()):
            return []
        before, after = comparable(before), comparable(settings)
        before.pop(ROWS, None)
        if after.get("bf16") == AUTO:  # the choice of the machine that starts a folder, which the folder then keeps
            after["bf16"] = before.get("bf16", AUTO)
        names = sorted(name for name in {*before, *after} if _value(before.get(name)) != _value(after.get(name)))
        return [f"{name} was {before.get(name)}, is {after.get(name)}" for name in names]

    def recorded_settings(self) -> dict[str, str]:
        """The settings this folder was started with, as text; empty if it was not."""
        return read_json(self.settings_file) or {}

    def check_settings(self, given: dict[str, Any]) -> None:
        """Refuse to continue with other settings.

        Raises:
            UserError: they are not those that this folder was started with.
        """
        if changes := self.changed_settings(given):
            raise UserError(
                f"{self.path} was started with other settings ({'; '.join(changes)}): "
                "remove it or choose another --output_dir"
            )

    def begin(self, settings: dict[str, Any], rows: str | None = None) -> None:
        """Start or go on: record the settings, with the fingerprint of the rows, next to the checkpoints, and remove
        those whose writing was interrupted.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.settings_file, comparable(settings) | ({ROWS: rows} if rows else {}))
        for folder in self.path.glob("checkpoint-*"):
            if not checkpoint_marker(folder).exists():
                shutil.rmtree(folder)

    def check_rows(self, fingerprint: str, data_path: str) -> None:
        """Refuse to continue on other rows: those of the steps that are done would no longer be the first ones.

        Raises:
            UserError: the rows are not those that this folder was started with.
        """
        if self.recorded_settings().get(ROWS, fingerprint) != fingerprint:
            raise UserError(
                f"{data_path} gives other rows than when {self.path} was started (text, images, weights or chat "
                "template): undo that, remove the folder, or choose another --output_dir"
            )

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint."""
        complete = [folder for folder in self.path.glob("checkpoint-*") if checkpoint_marker(folder).exists()]
        return max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def checkpoint_marker(folder: str | Path) -> Path:
    """The file that is written last into a checkpoint folder."""
    return Path(folder) / "checkpoint_complete.json"


def comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that determine the weights, as text, with `{method}` filled in."""
    shared = {"steps_share_lengths": False} if settings.get("micro_batch_tokens") else {}  # so rows have another order
    text = with_method({name: str(value) for name, value in {**settings, **shared}.items()})
    return {name: text[name] for name in sorted(text) if name not in _FREE}


def _value(text: Any) -> Any:
    """What a setting means, whether YAML, JSON or the command line wrote it: `True` is `true`, `1e-5` is `0.00001`."""
    if isinstance(text, dict):
        return {name: _value(value) for name, value in text.items()}
    if isinstance(text, list):
        return [_value(value) for value in text]
    if not isinstance(text, str):
        return text
    for read in (json.loads, literal_eval) if text.startswith(("[", "{")) else ():
        with suppress(ValueError, SyntaxError):
            return _value(read(text))
    with suppress(ValueError):
        return float(text)
    words = {**dict.fromkeys(("true", "yes"), True), **dict.fromkeys(("false", "no"), False)}
    return words.get(text.lower(), None if text.lower() in ("none", "null") else text)


def say(text: str) -> None:
    """Print one line and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
