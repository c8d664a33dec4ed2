"""Norm and cosine by layer (paper Fig. 5) during training."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from modeling_aligned_llava.inspection.content_text import special_ids
from modeling_aligned_llava.inspection.layer_probe import probe_layers
from train.monitoring.log import JsonLinesFile


Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]


def first_rows(rows: Dataset, count: int) -> list[dict[str, Any]]:
    """The first `count` rows with an image; where the first 1,024 rows have fewer, rows without one follow."""
    with_image: list[dict[str, Any]] = []
    without: list[dict[str, Any]] = []
    for row in islice(rows, 1024):
        (with_image if row["images"] else without).append(row)
        if len(with_image) == count:
            break
    return (with_image + without)[:count]


class LayerProbe(JsonLinesFile):
    """`probe.jsonl`: mean norm and cosine by layer and modality on the same rows, at the start and every `save_steps`.

    Text means content, as in the diagnostics. Every process runs the same rows, as sharded models require.
    """

    def __init__(self, path: Path, collator: Collator, rows: list[dict[str, Any]], tokenizer: Any):
        super().__init__(path)
        self.collator, self.rows, self.tokenizer = collator, rows, tokenizer

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        if state.global_step == 0:
            self._write(args, state, model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == state.max_steps or state.global_step % max(1, int(args.save_steps)) == 0:
            self._write(args, state, model)

    def _write(self, args, state, model) -> None:
        training = model.training
        model.eval()
        device = torch.device(args.device)
        special = special_ids(self.tokenizer, model.config)
        eager = torch.compiler.set_stance("force_eager")  # compiled layers would be compiled again with the hooks
        with eager, torch.no_grad(), probe_layers(model, special) as profile:
            for row in self.rows:
                batch = {name: value.to(device) for name, value in self.collator([row]).items()}
                batch.pop("labels")
                model(**batch, use_cache=False, logits_to_keep=1)
        model.train(training)
        self.append(state, {"step": state.global_step, **profile.records()})
