"""The model that a stage starts from: a checkpoint of the same method, or a model of any other family."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from trl import SFTConfig

from modeling_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.aligned_family import ADAPTER_SETTINGS, NORM
from modeling_aligned_llava.alignment import align, load_vision_language
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.hub_folder import is_hub_id
from modeling_aligned_llava.inspection.text_stream import mean_stream_norm
from modeling_aligned_llava.loading.checkpoint import end_tokens, load_part, local_folder


OURS = AlignedLlavaConfig.model_type


@contextmanager
def whole_models(training: SFTConfig) -> Iterator[None]:
    """Load models whole inside the block. Under ZeRO-3 transformers shards them, which takes all processes at once."""
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if training.deepspeed_plugin is not None:
            training.deepspeed_plugin.set_deepspeed_weakref()


def trained_checkpoint(name: str) -> Path:
    """The folder of `model_name_or_path`, downloaded if it is a Hub id.

    Raises:
        UserError: there is none.
    """
    folder = Path(local_folder(name) if is_hub_id(name.partition("@")[0]) else name)
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER_SETTINGS)):
        raise UserError(f"model_name_or_path: there is no checkpoint in {folder}; run stage 1 first")
    return folder


def checkpoint_of_method(name: str, fields: dict[str, Any]) -> Path:
    """The folder of a checkpoint, downloaded if need be, that has no norm yet or the norm of `fields`.

    Raises:
        UserError: there is none, or it belongs to another method.
    """
    folder = trained_checkpoint(name)
    config = load_part(AutoConfig, folder, "model_name_or_path")
    made_with = config.to_dict() if config.model_type == OURS else getattr(config, NORM, None)
    if made_with is None:
        return folder
    if None not in (made_with.get("method"), fields["method"]) and made_with["method"] != fields["method"]:
        raise UserError(f"{folder} belongs to method {made_with['method']}, not to {fields['method']}")
    for field in fields.keys() - {"method"}:
        saved = made_with.get(field, getattr(AlignedLlavaConfig, field))
        if saved != fields[field]:
            raise UserError(
                f"{folder} was made with {field} {saved}, not {fields[field]}: "
                "give both stages the same method and norm_fields"
            )
    return folder


def load_model(
    folder: Path,
    config: Any,
    training: SFTConfig,
    method: str,
    fields: dict[str, Any],
    tokenizer: Any,
    texts: Iterable[str],
) -> PreTrainedModel:
    """The model in float32 with the norm of the method, ready to train.

    Args:
        folder, config: the checkpoint to start from, and its configuration.
        training: whether ZeRO-3 would shard a model that is measured first.
        fields: those of the method, for a model of another family that has no norm yet.
        tokenizer, texts: with which a target that depends on the text inside the decoder is measured.

    Raises:
        UserError: it cannot be loaded, is quantized, or the method needs texts and there is none.
    """
    if (quantized := getattr(config, "quantization_config", None)) is not None:
        kind = quantized.get("quant_method") if isinstance(quantized, dict) else quantized.quant_method
        raise UserError(f"{folder} is quantized ({kind}): training needs whole weights; start from the original")
    with nullcontext() if config.model_type == OURS else whole_models(training):  # others are measured
        model = load_vision_language(folder, config, dtype=torch.float32)
    if config.model_type != OURS and getattr(config, NORM, None) is None:
        settings = {name: value for name, value in fields.items() if name != "method"}
        needed = AlignedLlavaConfig(**fields)
        if needed.needs_stream_norm:
            settings["stream_norm"] = mean_stream_norm(model, tokenizer, texts, needed.stream_layer)
        align(model, method, **settings)
    return model.train()


def stop_after_answers(model: PreTrainedModel, tokenizer: Any, ending: tuple[str, str] | None) -> None:
    """Let generation end at the token that ends the answers of the rows: the model learns it, and a
    generation_config.json that does not name it would let answers run on.
    """
    config = model.generation_config
    if config is not None and ending is not None:
        token, known = tokenizer.convert_tokens_to_ids(ending[0]), end_tokens(config)
        if token not in known:
            config.eos_token_id = [*known, token]


def try_saving(model: PreTrainedModel, processor: Any) -> None:
    """Save everything but the weights once, so that nothing stops the save after training.

    Raises:
        UserError: something would.
    """
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()):  # without its bar
        with errors_named("the trained model could not be saved", Exception):  # transformers checks what it writes
            model.save_pretrained(folder, state_dict={})
            processor.save_pretrained(folder)
