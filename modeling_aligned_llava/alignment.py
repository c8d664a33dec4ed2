"""Put the norm of the paper (section 5) on the connector of a model, in place, and load any model with its norm.

The families are entries of `inspection/model_parts.py`.
"""

from inspect import get_annotations
from pathlib import Path
from typing import Any, TypeVar, cast

import transformers
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, LlavaConfig, PreTrainedModel

from .aligned_family import adapters_in, aligned_class, point_to_class
from .configuration_aligned_llava import PALIGEMMA_DIVIDES, AlignedLlavaConfig
from .errors import UserError, errors_named
from .inspection.model_parts import FAMILIES, REFUSED
from .loading.checkpoint import CAUSAL, VISION_LANGUAGE, load_part, load_strict, pinned
from .methods import method_fields
from .modeling_aligned_llava import CONNECTOR, NORM, AlignedLlavaForConditionalGeneration, attach_norm
from .norm_alignment import mean_embedding_norm


NOTHING = "(?!)"  # a pattern that nothing matches
Model = TypeVar("Model", bound=PreTrainedModel)


def align(model: Model, method: str = "norm-gwc", *, text_norm: float | None = None, **fields: Any) -> Model:
    """Put the norm of `method` on the output of the connector of `model`, in place.

    The class of `model` becomes one that keeps the norm: `save_pretrained` writes the two tensors of the norm with the
    rest, its settings in the config under `alignment_norm`, and the code that loads them. The norm is kept in float32.
    `baseline` adds no module, and changes no class.

    Args:
        model: a loaded model of one of `FAMILIES`, with or without its language-model head.
        method: a name in `configuration/methods.yaml`.
        text_norm: the target `s` of Eq. 11; None: measured on the embeddings of `model`.
        **fields: fields of `AlignedLlavaConfig` about the norm that differ from those of the method.

    Returns:
        The same model.

    Raises:
        UserError: the family cannot be served, the model is aligned already, its weights are not in memory, or a field
            is unknown or out of its range.
    """
    connector = _connector(model)
    if getattr(model.config, NORM, None) is not None:
        raise UserError(f"align: this {model.config.model_type} model is aligned already; load it again")
    named = method_fields(method)
    settings: dict[str, Any] = {**named, "text_norm": text_norm, **fields}
    if any(settings[name] != value for name, value in named.items()):
        settings["method"] = None  # the combination has no name
    config = _norm_config(settings)
    if config.needs_text_norm and text_norm is None:
        settings["text_norm"] = config.text_norm = _measured_text_norm(model)
    if config.needs_stream_norm and config.stream_norm is None:
        raise UserError("align: this target needs stream_norm; pass mean_stream_norm(model, tokenizer, texts)")
    if next(connector.parameters()).is_meta:
        raise UserError("align: the weights of the connector are not in memory (offloaded, or on the meta device)")
    setattr(model.config, NORM, {**settings, CONNECTOR: FAMILIES[model.config.model_type].connector})
    if (norm := attach_norm(model)) is not None:
        norm._is_hf_initialized = True  # type: ignore[assignment]  # `model.init_weights()` leaves it alone
        model.__class__ = aligned_class(cast(Any, type(model)))
        point_to_class(model)
    return model


def load_aligned(path: str | Path, *, revision: str | None = None, **kwargs: Any) -> PreTrainedModel:
    """Load a model that was aligned and saved with `save_pretrained`, bit for bit, without running code of the folder.

    LoRA adapters that were kept apart (`merge_adapters: false`) are merged into the model that they were trained on.
    Transformers loads the same folder with `AutoModelForImageTextToText` and `trust_remote_code=True`.

    Args:
        path: folder or Hub id.
        revision: branch, tag or commit on the Hub.
        **kwargs: as for `from_pretrained`.

    Raises:
        UserError: the folder cannot be loaded, was not saved from an aligned model, or lacks weights.
    """
    with errors_named(f"cannot load {path}", OSError, ValueError, SafetensorError):
        name, commit = pinned(path)
        folder = Path(name)
        if not folder.is_dir():
            weights = ["*.json", "*.safetensors"]
            folder = Path(snapshot_download(name, revision=revision or commit, allow_patterns=weights))
        config = load_part(AutoConfig, folder)
        return load_strict(_saved_class(folder, config), folder, unused=NOTHING, config=config, **kwargs)


def load_vision_language(path: str | Path, config: Any = None, **kwargs: Any) -> PreTrainedModel:
    """Load any vision-language checkpoint, aligned or not, with the norm that it was saved with.

    Args:
        path: folder or Hub id.
        config: its configuration; None: read from `path`.
        **kwargs: as for `from_pretrained`.

    Raises:
        UserError: the checkpoint cannot be loaded or lacks tensors.
    """
    config = config or load_part(AutoConfig, path, trust_remote_code=kwargs.get("trust_remote_code", False))
    if getattr(config, NORM, None) is None and not isinstance(config, AlignedLlavaConfig):
        return load_strict(AutoModelForImageTextToText, path, config=config, **kwargs)
    kwargs.pop("trust_remote_code", None)  # the families that can be aligned are transformers' own
    return load_aligned(path, **kwargs)


def _saved_class(folder: Path, config: Any) -> Any:
    if isinstance(config, AlignedLlavaConfig):
        return AlignedLlavaForConditionalGeneration
    if getattr(config, NORM, None) is None:
        raise UserError(f"{folder} was not saved from an aligned model (no {NORM!r} in its config)")
    name = config.architectures[0].removeprefix("Aligned")
    if (plain := getattr(transformers, name, None)) is None:
        raise UserError(f"{folder}: there is no class {name} in transformers {transformers.__version__}")
    is_plain = getattr(config, NORM).get("projector_norm") == "none" and adapters_in(folder) is None
    return plain if is_plain else aligned_class(plain)


def _connector(model: PreTrainedModel) -> nn.Module:
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"align takes a transformers model, not a {type(model).__name__}; align before wrapping it")
    check_family(model.config.model_type)
    return model.base_model.get_submodule(FAMILIES[model.config.model_type].connector)


def check_family(model_type: str) -> None:
    """Check that `align` serves a family.

    Raises:
        UserError: it does not; the message says why.
    """
    if model_type in REFUSED:
        raise UserError(f"align: {model_type} cannot be served: {REFUSED[model_type]}")
    if model_type in CAUSAL - VISION_LANGUAGE:
        raise UserError(f"align: {model_type} is a text-only model: it has no visual tokens")
    if model_type not in FAMILIES:
        raise UserError(f"align: {model_type} is none of the families it knows: {', '.join(FAMILIES)}")
    if model_type == "paligemma" and PALIGEMMA_DIVIDES:
        raise UserError("align: PaliGemma changes the norm of tokens behind its connector before transformers 5.13")


def _norm_config(settings: dict[str, Any]) -> AlignedLlavaConfig:
    """Check the fields of the norm; the fields that describe a LLaVA keep their defaults."""
    known = get_annotations(AlignedLlavaConfig).keys() - get_annotations(LlavaConfig).keys()
    if unknown := sorted(settings.keys() - known):
        raise UserError(f"align: unknown field {unknown[0]!r}; fields of the norm: {', '.join(sorted(known))}")
    with errors_named("align", ValueError):
        config = AlignedLlavaConfig(**settings)
        config.check_alignment()  # before transformers 5.4 a config did not check itself
        return config


def _measured_text_norm(model: PreTrainedModel) -> float:
    embedding = cast(nn.Embedding, model.get_input_embeddings())
    if embedding.weight.is_meta:
        raise UserError("align: cannot measure the text norm, the embeddings are not in memory; pass text_norm")
    with errors_named("align", ValueError):
        return mean_embedding_norm(embedding)
