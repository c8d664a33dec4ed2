"""How a model of transformers carries, loads and saves the norm on its connector's output (paper section 5); LLaVA.

The norm is a submodule of the connector, called by a forward hook, so forward, generate, `get_image_features` and
trainers that replace `forward` all pass through it. Without a norm a model is bit-equal to transformers' own. Families
other than LLaVA: `aligned_family.py`.
"""

import os
from functools import partial
from typing import Any, cast

from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    BitsAndBytesConfig,
    LlavaForConditionalGeneration,
    LlavaModel,
    LlavaPreTrainedModel,
    PreTrainedModel,
)
from transformers.core_model_loading import WeightRenaming

from .configuration_aligned_llava import NESTED_TOWERS, AlignedLlavaConfig
from .hub_folder import copy_processor, forget_local_paths, missing_tensors, push, write_plain_card
from .norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm, target_gain


NORM = "alignment_norm"  # in other families: the submodule of the connector, and its settings in the config
CONNECTOR = "connector"  # among these settings: its path below `base_model`
# The Auto classes that load models like ours; one that is not told of our class would build a plain model.
WITH_HEAD = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForPreTraining")
_AUTO_MAP = {
    "AutoConfig": "configuration_aligned_llava.AlignedLlavaConfig",
    "AutoModel": "modeling_aligned_llava.AlignedLlavaModel",
    **dict.fromkeys(WITH_HEAD, "modeling_aligned_llava.AlignedLlavaForConditionalGeneration"),
}
# Pattern of a saved name -> its part in memory.
_RENAMED = {"vision_tower.(?!vision_model.)": "vision_tower.vision_model."} if NESTED_TOWERS else {}


def build_norm(config: AlignedLlavaConfig, dim: int) -> GlobalWeightCompensatedLayerNorm | None:
    """Build the norm that the fields of `config` describe, at its initial gain if that is known; None without one."""
    config.check_alignment()  # from_pretrained overrides fields after the config's own check
    if config.projector_norm == "none":
        return None
    norm = GlobalWeightCompensatedLayerNorm(
        dim,
        eps=config.norm_eps,
        centred=config.projector_norm == "layernorm",
        compensation_exponent=config.compensation_exponent,
        compensation_eps=config.compensation_eps,
    )
    if config.target is not None:
        set_initial_gain(norm, config)
    return norm


def set_initial_gain(norm: GlobalWeightCompensatedLayerNorm, config: AlignedLlavaConfig) -> None:
    """Reset the norm to the gain that gives visual tokens the norm `config.target` (Eq. 11).

    The one place that computes it: called when the norm is built, and again once a missing norm has been measured.
    """
    if config.starts_at_target:
        assert config.target is not None
        gain = target_gain(config.target, norm.dim)
        if config.norm_parametrization == "relative":
            norm.scale = gain
        else:
            norm.gain_init = gain
    norm.reset_parameters()


def forget_absent_layers(model: Any) -> None:
    """Keep only classes of the model's own modules in `_no_split_modules`.

    A vision tower brings the layer classes of its text half too, which accelerate's FSDP2 would not find.
    """
    present = {type(module).__name__ for module in model.modules()}
    model._no_split_modules = sorted(present & set(model._no_split_modules or ()))


def attach_norm(model: Any) -> GlobalWeightCompensatedLayerNorm | None:
    """Put the norm that `model.config` describes on the output of the connector; None without one."""
    fields, path, name = model.config, "multi_modal_projector", "norm"
    if fields.model_type != AlignedLlavaConfig.model_type:  # not its class: code from a folder may bring another copy
        settings = dict(getattr(fields, NORM))
        path, name, fields = settings.pop(CONNECTOR), NORM, AlignedLlavaConfig(**settings)
    connector = model.base_model.get_submodule(path)
    norm = build_norm(fields, model.get_input_embeddings().embedding_dim)
    if norm is not None:
        connector.add_module(name, norm.to(next(connector.parameters()).device).train(connector.training))
        connector.register_forward_hook(partial(_normalise, name))
    return norm


def _normalise(name: str, connector: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Forward hook, [..., D] -> [..., D]; looks the norm up, so that a copied model calls its own norm."""
    return connector.get_submodule(name)(output)


class NormOnConnector(PreTrainedModel):
    """What a class of transformers gets to carry the norm: mixed in before it."""

    processor_source: tuple[str, str | None] | None = None  # folder or Hub id, and revision, of the weights

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        attach_norm(self)
        forget_absent_layers(self)

    @classmethod
    def from_pretrained(cls, source: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Like the parent method, but requires all tensors: transformers would fill missing ones with random numbers.

        Raises:
            OSError: a weights file is cut short, is not a safetensors file, or lacks tensors.
        """
        reports = kwargs.pop("output_loading_info", False)
        try:
            loaded: Any = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
            model, report = loaded
        except SafetensorError as error:
            raise OSError(f"{source}: a weights file is damaged or cut short ({error}); copy it again") from error
        if source is not None:
            if not reports:
                cls.require_tensors(source, report, kwargs)
            origin = os.path.abspath(source) if os.path.isdir(source) else str(source)
            model.processor_source = origin, kwargs.get("revision")
        return (model, report) if reports else model

    @classmethod
    def require_tensors(cls, source: Any, report: dict[str, Any], kwargs: dict[str, Any]) -> None:
        """Raise an `OSError` if transformers' report says that a checkpoint lacks tensors."""
        if report["missing_keys"]:
            raise missing_tensors(source, report["missing_keys"])

    def save_pretrained(
        self, save_directory: str | os.PathLike, is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Save the model with the code that loads it, its processor and a model card.

        `push_to_hub=True` uploads the folder as well; the arguments of `push_to_hub` are then accepted here.
        """
        publish, config = kwargs.pop("push_to_hub", False), self.config
        names = ("repo_id", "private", "revision", "create_pr", "commit_message", "commit_description", "tags")
        destination = {name: kwargs.pop(name) for name in names if name in kwargs}
        forget_local_paths(config)
        wrapped = type(self)  # FSDP2 makes the model a subclass of its own, whose code would be saved and named
        self.__class__ = next(base for base in wrapped.__mro__ if not base.__name__.startswith("FSDP"))
        try:
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        finally:
            self.__class__ = wrapped
        if is_main_process:
            source, revision = self.processor_source or (str(config.name_or_path), None)
            copy_processor(source, revision, save_directory)
            write_plain_card(config, save_directory)
        if publish:
            destination.setdefault("repo_id", os.path.basename(os.path.abspath(save_directory)))
            self.push_to_hub(**destination, token=kwargs.get("token"))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        """Save and upload in one commit; for arguments and result see `hub_folder.push`."""
        return push(self, *args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        # transformers resets every module whose class name contains "LayerNorm" to a gain of 1.
        if isinstance(module, GlobalWeightCompensatedLayerNorm):
            module.reset_parameters()  # transformers guards torch's initialisers: loaded tensors stay as they are
        else:
            super()._init_weights(module)


class AlignedLlavaPreTrainedModel(NormOnConnector, LlavaPreTrainedModel):
    """LLaVA: fields of `AlignedLlavaConfig` given to `from_pretrained` add a norm to a checkpoint without one."""

    config_class = AlignedLlavaConfig
    config: AlignedLlavaConfig
    _keep_in_fp32_modules_strict = ["multi_modal_projector.norm"]  # noqa: RUF012

    def __init__(self, config: AlignedLlavaConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._measure_text_norm()

    def initialize_weights(self) -> None:
        """Initialise what is not loaded; a new norm without a known text norm is measured on the embeddings then."""
        super().initialize_weights()
        self._measure_text_norm()

    def _measure_text_norm(self) -> None:
        norm = getattr(self.base_model.multi_modal_projector, "norm", None)
        embedding, config = cast(nn.Embedding, self.get_input_embeddings()), self.config
        if norm is None or embedding.weight.is_meta:
            return
        if config.needs_stream_norm and config.stream_norm is None:
            raise ValueError(
                "this method needs stream_norm, which python -m modeling_aligned_llava.assembly measures on text"
            )
        if not config.needs_text_norm or config.text_norm is not None:
            return
        if any(getattr(parameter, "_is_hf_initialized", False) for parameter in norm.parameters()):
            raise ValueError("the checkpoint holds a trained norm but its config no text_norm; set config.text_norm")
        config.text_norm = mean_embedding_norm(embedding)
        set_initial_gain(norm, config)

    @classmethod
    def from_pretrained(cls, source: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """See `NormOnConnector`; keeps the projector unquantized, as it does the head."""
        quantization = kwargs.get("quantization_config")
        if isinstance(quantization, BitsAndBytesConfig) and quantization.llm_int8_skip_modules is None:
            skip = [r".*multi_modal_projector", "lm_head"]  # regular expressions, matched from the start of a name
            settings = {**quantization.to_dict(), "llm_int8_skip_modules": skip}
            kwargs["quantization_config"] = BitsAndBytesConfig(**settings)
        if _RENAMED:
            kwargs.setdefault("key_mapping", _RENAMED)
        return super().from_pretrained(source, *args, **kwargs)

    @classmethod
    def require_tensors(cls, source: Any, report: dict[str, Any], kwargs: dict[str, Any]) -> None:
        """See `NormOnConnector`; a norm may be missing if the checkpoint itself has none."""
        missing = report["missing_keys"]
        if missing and _norm_is_new(source, kwargs):
            missing = [name for name in missing if "multi_modal_projector.norm." not in name]
        super().require_tensors(source, {"missing_keys": missing}, kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """See `NormOnConnector`."""
        self.config.auto_map = dict(_AUTO_MAP)
        # Save today's names, which are the only ones this class reads.
        self._weight_conversions = [WeightRenaming(*names) for names in _RENAMED.items()]
        super().save_pretrained(*args, **kwargs)


def _norm_is_new(source: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the checkpoint itself has no norm: a fresh one is wanted by fields given to `from_pretrained`."""
    saved, _ = AlignedLlavaConfig.get_config_dict(source, **kwargs)
    default = AlignedLlavaConfig.projector_norm if saved.get("model_type") == AlignedLlavaConfig.model_type else "none"
    return saved.get("projector_norm", default) == "none"


class AlignedLlavaModel(AlignedLlavaPreTrainedModel, LlavaModel):
    """Vision tower, projector with its norm, and language model, without a head."""


class AlignedLlavaForConditionalGeneration(AlignedLlavaPreTrainedModel, LlavaForConditionalGeneration):
    """LLaVA with the norm and the language-model head; use it like `LlavaForConditionalGeneration`."""

    def __init__(self, config: AlignedLlavaConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model.__class__ = AlignedLlavaModel  # it initialises a norm that no checkpoint has


__all__ = ["AlignedLlavaForConditionalGeneration", "AlignedLlavaModel"]
