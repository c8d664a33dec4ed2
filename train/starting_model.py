"""What a stage starts from: backbones to assemble, the stage-1 checkpoint of the same method, or any other family."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from trl import SFTConfig

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.aligned_family import NORM
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.connectors import align, load_vision_language
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.text_stream import mean_stream_norm
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict
from train.arguments.parse import RunArguments
from train.data.prepared import first_texts
from train.data.sources import Source
from train.data.stage_tokenization import trained_checkpoint


OURS = AlignedLlavaConfig.model_type


def starting_folder(run: RunArguments, output: Path, seed: int, sources: list[Source]) -> Path:
    """The folder of the checkpoint that the stage starts from, assembled or downloaded if need be.

    Raises:
        UserError: there is none, or it belongs to another method.
    """
    if run.model.model_name_or_path is None:
        assert run.model.vision_tower is not None and run.model.language_model is not None
        return assemble(
            run.model.vision_tower,
            run.model.language_model,
            output / "assembled",
            fields=run.model.config_fields,
            seed=seed,
            chat_template=run.model.chat_template,
            texts=_texts(run, sources),
            exist_ok=True,
        )
    source = trained_checkpoint(run.model.model_name_or_path)
    config = load_part(AutoConfig, source, "model_name_or_path")
    made_with = config.to_dict() if config.model_type == OURS else getattr(config, NORM, None)
    if made_with is not None:
        _check_method(run, source, made_with)
    return source


def _check_method(run: RunArguments, source: Path, made_with: dict[str, Any]) -> None:
    wanted = run.model.config_fields
    if None not in (made_with.get("method"), wanted["method"]) and made_with["method"] != wanted["method"]:
        raise UserError(f"{source} belongs to method {made_with['method']}, not to {run.model.method}")
    for name in wanted.keys() - {"method"}:
        found = made_with.get(name, getattr(AlignedLlavaConfig, name))
        if found != wanted[name]:
            raise UserError(
                f"{source} was made with {name} {found}, not {wanted[name]}: "
                "give both stages the same method and norm_fields"
            )


@contextmanager
def whole_models(training: SFTConfig) -> Iterator[None]:
    """Load models whole inside the block. Under ZeRO-3 transformers shards them, which takes all processes at once."""
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if training.deepspeed_plugin is not None:
            training.deepspeed_plugin.set_deepspeed_weakref()


def load_start(
    run: RunArguments, training: SFTConfig, folder: Path, processor: Any, sources: list[Source]
) -> PreTrainedModel:
    """The model in float32 with the norm of the method.

    Raises:
        UserError: it cannot be loaded, is quantized, or the method needs texts and there is none.
    """
    config = load_part(AutoConfig, folder)
    if (quantized := getattr(config, "quantization_config", None)) is not None:
        kind = quantized.get("quant_method") if isinstance(quantized, dict) else quantized.quant_method
        raise UserError(f"{folder} is quantized ({kind}): training needs whole weights; start from the original")
    if config.model_type == OURS:
        return load_strict(AlignedLlavaForConditionalGeneration, folder, unused="", dtype=torch.float32)
    with whole_models(training):  # to be measured
        model = load_vision_language(folder, dtype=torch.float32)
    if getattr(model.config, NORM, None) is None:
        fields = {name: value for name, value in run.model.config_fields.items() if name != "method"}
        needed = AlignedLlavaConfig(**run.model.config_fields)
        if needed.needs_stream_norm:
            texts = _texts(run, sources)
            fields["stream_norm"] = mean_stream_norm(model, processor.tokenizer, texts, needed.stream_layer)
        align(model, run.model.method, **fields)
    return model.train()


def _texts(run: RunArguments, sources: list[Source]) -> Iterable[str]:
    return first_texts(sources, run.data.data_cache)
