"""`encoders`: norms of vision encoder outputs (paper Table 1)."""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from modeling_aligned_llava.diagnostics.instruments.decoder_states import states_of, without_padding
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion, named_images
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load_encoder
from modeling_aligned_llava.diagnostics.instruments.tables import number, paper_row, show_table, spread
from modeling_aligned_llava.diagnostics.instruments.token_statistics import Moments
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.inspection.forward_pass import check_finite, hooked
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.files import write_json


OUTPUTS = ("last hidden state", "last, patches", "layer -2, patches", "read by the connector")


def run(arguments: argparse.Namespace) -> None:
    sample, norms = named_images(arguments), {}
    for path in arguments.models:
        norms[path] = encoder_norms(*load_encoder(path, arguments.trust_remote_code, arguments.dtype), sample)
    show_encoders(norms, arguments.out and arguments.out / "encoders.md")
    if arguments.out is not None:
        write_json(arguments.out / "encoders.json", norms)


@torch.inference_mode()
def encoder_norms(model: Any, processor: Any, sample: list[ImageQuestion]) -> dict[str, Any]:
    """`{"dim", "last hidden state" | ...: statistics}` of an encoder, in a normal pass of its model.

    "patches" leave out a class token; they are there if the encoder gives the states of its layers. "read by the
    connector" is what enters the connector of a vision-language model.

    Args:
        model: a vision-language model, or an encoder alone.
        processor: of the model, or of the encoder's images.

    Raises:
        UserError: there is no encoder, an image cannot be read, or states are not finite.
    """
    parts = model_parts(model) if hasattr(processor, "tokenizer") else None
    encoder, name = parts.vision if parts else model, model.config.name_or_path
    if encoder is None:
        raise UserError(f"{name} has no vision encoder")
    moments: dict[str, Moments] = defaultdict(Moments)
    dims: list[int] = []

    def add(output: str, states: Tensor) -> None:
        check_finite(states, model, f"states of the vision encoder ({output})")
        moments[output].add(states.float().norm(dim=-1).flatten())

    def after_encoder(_: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if (last := states_of(output)) is None:
            return
        dims.append(last.shape[-1])
        add("last hidden state", without_padding(last, kwargs))
        layers, skip = getattr(output, "hidden_states", None), _marks(encoder, last.shape[-2])
        for which, states in (("last", last), ("layer -2", layers[-2])) if layers else ():
            if states is not None:  # some models keep only the layers that their connector reads
                add(f"{which}, patches", without_padding(states, kwargs)[..., skip:, :])

    def before_connector(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        if (states := states_of([*args, *kwargs.values()])) is not None:
            add("read by the connector", states)

    handles = [encoder.register_forward_hook(after_encoder, with_kwargs=True)]
    for connector in parts.connectors if parts else ():
        handles.append(connector.register_forward_pre_hook(before_connector, with_kwargs=True))
    with hooked(handles):
        for image in track(sample, description="images"):
            if parts:
                inputs = {**inputs_of(processor, image, model.device, model.dtype), "use_cache": False}
            else:
                pixels = processor(images=[image.open()], return_tensors="pt").to(model.device, model.dtype)
                inputs = {**pixels, "output_hidden_states": True}
            with errors_named(f"{name} fails on {image.id}"):
                model(**inputs)
    if not dims:
        raise UserError(f"{name}: its vision encoder gives no states")
    return {"dim": dims[-1], **{output: moments[output].summary() for output in OUTPUTS if output in moments}}


def _marks(encoder: Any, tokens: int) -> int:
    """The number of class and register tokens before the patches, which are a square."""
    named = {name.rpartition(".")[2]: parameter for name, parameter in encoder.named_parameters()}
    count = int("class_embedding" in named or "cls_token" in named)
    count += named["register_tokens"].shape[-2] if "register_tokens" in named else 0
    return count if round((tokens - count) ** 0.5) ** 2 == tokens - count else 0


def show_encoders(models: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Table 1: every output of every vision encoder."""
    rows = []
    for model, outputs in models.items():
        paper = paper_row("encoders", model)
        for name, norms in outputs.items():
            if name != "dim":
                cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), str(norms["count"])]
                theirs = spread(paper.get("mean"), paper.get("std"), 2)
                rows.append([f"{model}: {name}", str(outputs["dim"]), *cells, theirs])
    heads = ["encoder", "dimension", "mean ± std over tokens", "median", "tokens", "paper"]
    show_table("Norms of vision encoder outputs (Table 1)", heads, rows, out)
