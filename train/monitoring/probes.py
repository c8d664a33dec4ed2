"""Measurements of the model during training: norm and cosine by layer (paper Fig. 5), and answers to held-out rows."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from modeling_aligned_llava.inspection.layer_probe import probe_layers
from train.data.tokenization import RowEncoder
from train.monitoring.log import JsonLinesFile


Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]
MAX_NEW_TOKENS = 64


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

    Every process runs the same rows, as sharded models require.
    """

    def __init__(self, path: Path, collator: Collator, rows: list[dict[str, Any]]):
        super().__init__(path)
        self.collator = collator
        self.rows = rows

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
        with torch.no_grad(), probe_layers(model) as profile:
            for row in self.rows:
                batch = {name: value.to(device) for name, value in self.collator([row]).items()}
                batch.pop("labels")
                model(**batch, use_cache=False, logits_to_keep=1)
        model.train(training)
        self.append(state, {"step": state.global_step, **profile.records()})


class SampleAnswers(JsonLinesFile):
    """`samples.jsonl`: the model's greedy answer to the first turn of some held-out rows, at each evaluation."""

    def __init__(
        self,
        path: Path,
        collator: Collator,
        rows: list[dict[str, Any]],
        encoder: RowEncoder,
    ):
        super().__init__(path)
        self.collator = collator
        self.tokenizer = encoder.tokenizer
        self.prompts = [encoder.first_turn(row) for row in rows]

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        training = model.training
        model.eval()
        for number, (prompt, reference) in enumerate(self.prompts):
            batch = {name: value.to(torch.device(args.device)) for name, value in self.collator([prompt]).items()}
            batch.pop("labels")
            with torch.no_grad():
                ids: Tensor = model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, use_cache=True)
            answer = self.tokenizer.decode(ids[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)
            record = {"step": state.global_step, "row": number, "answer": answer}
            self.append(state, {**record, "reference": reference})
        model.train(training)
