"""Put the norm of the paper (section 5) on the connector's output in other vision-language models, in place.

The norm becomes a submodule of the connector, called by a forward hook: two keys join the checkpoint, none changes.
The families are entries of `inspection/model_parts.py`.
"""

from inspect import get_annotations
from pathlib import Path
from typing import Any, TypeVar, cast

import transformers
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, LlavaConfig, PreTrainedModel

from .configuration_aligned_llava import AlignedLlavaConfig
from .errors import UserError
from .inspection.model_parts import FAMILIES, REFUSED
from .loading.checkpoint import CAUSAL, NORM, VISION_LANGUAGE, load_part, load_strict, pinned
from .methods import method_fields
from .modeling_aligned_llava import build_norm
from .norm_alignment import mean_embedding_norm


Model = TypeVar("Model", bound=PreTrainedModel)


def align(model: Model, method: str = "norm-gwc", *, text_norm: float | None = None, **fields: Any) -> Model:
    """Put the norm of `method` on the output of the connector of `model`, in place.

    `model.save_pretrained` then writes the two tensors of the norm with the rest, and its settings in the config under
    `alignment_norm`; `load_aligned` reads them. The norm is kept in float32. `baseline` adds no module.

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
    settings: dict[str, Any] = {**method_fields(method), "text_norm": text_norm, **fields}
    config = _norm_config(settings)
    if config.needs_text_norm and text_norm is None:
        settings["text_norm"] = config.text_norm = _measured_text_norm(model)
    if config.needs_visual_norm and config.visual_norm is None:
        raise UserError("align: this target needs visual_norm, the mean norm of the connector's tokens; pass it")
    if config.needs_stream_norm and config.stream_norm is None:
        raise UserError("align: this target needs stream_norm; pass mean_stream_norm(model, tokenizer, texts)")
    _attach(model, connector, config)
    setattr(model.config, NORM, settings)
    return model


def load_aligned(path: str | Path, *, revision: str | None = None, **kwargs: Any) -> PreTrainedModel:
    """Load a model that was aligned and saved with `save_pretrained`; its norm is read back bit for bit.

    The class's own `from_pretrained` would load the same folder without the norm.

    Args:
        path: folder or Hub id.
        revision: branch, tag or commit on the Hub.
        **kwargs: as for `from_pretrained`.

    Raises:
        UserError: the folder cannot be loaded, was not saved from an aligned model, or lacks weights.
    """
    try:
        name, commit = pinned(path)
        folder = Path(name) if Path(name).is_dir() else _downloaded(name, revision or commit)
        config = load_part(AutoConfig, folder)
        settings = getattr(config, NORM, None)
        if settings is None:
            raise UserError(f"{path} was not saved from an aligned model (no {NORM!r} in its config)")
        model = load_strict(_saved_class(folder, config), folder, unused=rf".*\b{NORM}\..*", **kwargs)
        _attach(model, _connector(model), _norm_config(settings))
        norm = getattr(_connector(model), NORM, None)
        if norm is not None:
            norm.load_state_dict(_saved_norm(folder, list(norm.state_dict())))
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"cannot load {path}: {' '.join(str(error).split())}") from error
    return model


def _downloaded(repository: str, revision: str | None) -> Path:
    return Path(snapshot_download(repository, revision=revision, allow_patterns=["*.json", "*.safetensors"]))


def load_vision_language(path: str | Path, config: Any = None, **kwargs: Any) -> PreTrainedModel:
    """Load any vision-language checkpoint, aligned or not, with the norm that it was saved with.

    Args:
        path: folder or Hub id.
        config: its configuration, perhaps with unused layers dropped; None: read from `path`.
        **kwargs: as for `from_pretrained`.

    Raises:
        UserError: the checkpoint cannot be loaded or lacks tensors.
    """
    config = config or load_part(AutoConfig, path, trust_remote_code=kwargs.get("trust_remote_code", False))
    if getattr(config, NORM, None) is None:
        return load_strict(AutoModelForImageTextToText, path, config=config, **kwargs)
    kwargs.pop("trust_remote_code", None)  # the families that can be aligned are transformers' own
    return load_aligned(path, **kwargs)


def _saved_class(folder: Path, config: Any) -> Any:
    name = config.architectures[0]
    if (model_class := getattr(transformers, name, None)) is None:
        raise UserError(f"{folder}: there is no class {name} in transformers {transformers.__version__}")
    return model_class


def _connector(model: PreTrainedModel) -> nn.Module:
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"align takes a transformers model, not a {type(model).__name__}; align before wrapping it")
    model_type = model.config.model_type
    if model_type in REFUSED:
        raise UserError(f"align: {model_type} cannot be served: {REFUSED[model_type]}")
    if model_type in CAUSAL - VISION_LANGUAGE:
        raise UserError(f"align: {model_type} is a text-only model: it has no visual tokens")
    if model_type not in FAMILIES:
        raise UserError(f"align: {model_type} is none of the families it knows: {', '.join(FAMILIES)}")
    return model.base_model.get_submodule(FAMILIES[model_type].connector)


def _norm_config(settings: dict[str, Any]) -> AlignedLlavaConfig:
    """Check the fields of the norm; the fields that describe a LLaVA keep their defaults."""
    known = get_annotations(AlignedLlavaConfig).keys() - get_annotations(LlavaConfig).keys()
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise UserError(f"align: unknown field {unknown[0]!r}; fields of the norm: {', '.join(sorted(known))}")
    try:
        config = AlignedLlavaConfig(**settings)
    except ValueError as error:
        raise UserError(f"align: {error}") from error
    if config.projector_init == "rescaled":
        raise UserError("align adds a norm; a rescaled projector is made by python -m modeling_aligned_llava.assembly")
    return config


def _text_embedding(model: PreTrainedModel) -> nn.Embedding:
    return cast(nn.Embedding, model.get_input_embeddings())


def _measured_text_norm(model: PreTrainedModel) -> float:
    if _text_embedding(model).weight.is_meta:
        raise UserError("align: cannot measure the text norm, the embeddings are not in memory; pass text_norm")
    try:
        return mean_embedding_norm(_text_embedding(model))
    except ValueError as error:
        raise UserError(f"align: {error}") from error


def _attach(model: PreTrainedModel, connector: nn.Module, config: AlignedLlavaConfig) -> None:
    norm = build_norm(config, _text_embedding(model).embedding_dim)
    if norm is None:
        return
    device = next(connector.parameters()).device
    if device.type == "meta":
        raise UserError("align: the weights of the connector are not in memory (offloaded, or on the meta device)")
    # Otherwise `model.init_weights()` would reset the gain, taking the module for a new LayerNorm.
    norm._is_hf_initialized = True  # type: ignore[assignment]
    connector.add_module(NORM, norm.to(device).train(connector.training))
    connector.register_forward_hook(_normalise)


def _normalise(connector: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook, [..., D] -> [..., D]; looks the norm up, so that a copied model calls its own norm."""
    return connector.get_submodule(NORM)(output)


def _saved_norm(folder: Path, names: list[str]) -> dict[str, Tensor]:
    """Read the tensors of the norm from the safetensors files of a folder, by their names in its state dict."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for key in weights.keys():
                module, _, name = key.rpartition(".")
                if module.endswith(f".{NORM}"):
                    found[name] = weights.get_tensor(key)
    absent = [name for name in names if name not in found]
    if absent:
        raise UserError(f"{folder}: its config names a norm, but its weights lack {NORM}.{absent[0]}")
    return found


__all__ = ["FAMILIES", "REFUSED", "align", "load_aligned", "load_vision_language"]
