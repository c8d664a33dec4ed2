"""LLaVA with the alignment norm on its projector's output (paper section 5).

The norm is part of the projector, so forward, generate, `get_image_features` and trainers that replace `forward` all
pass through it. Without a norm the model is bit-equal to transformers' `LlavaForConditionalGeneration`.
"""

import os
from typing import Any, cast

from safetensors import SafetensorError
from torch import nn
from transformers import AutoModel, BitsAndBytesConfig, LlavaForConditionalGeneration, LlavaModel, LlavaPreTrainedModel
from transformers.core_model_loading import WeightRenaming
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from .configuration_aligned_llava import NESTED_TOWERS, AlignedLlavaConfig
from .hub_folder import copy_processor, forget_local_paths, missing_tensors, push, write_plain_card
from .norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm, target_gain


_AUTO_MAP = {
    "AutoConfig": "configuration_aligned_llava.AlignedLlavaConfig",
    "AutoModel": "modeling_aligned_llava.AlignedLlavaModel",
    "AutoModelForImageTextToText": "modeling_aligned_llava.AlignedLlavaForConditionalGeneration",
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


class AlignedLlavaMultiModalProjector(LlavaMultiModalProjector):
    """LLaVA's two-layer projector, then the norm: [..., vision width] -> [..., D]."""

    def __init__(self, config: AlignedLlavaConfig):
        super().__init__(config)
        self.norm = build_norm(config, config.text_config.hidden_size)

    def forward(self, image_features):
        hidden_states = super().forward(image_features)
        return hidden_states if self.norm is None else self.norm(hidden_states)


class AlignedLlavaPreTrainedModel(LlavaPreTrainedModel):
    """Initialisation, loading and saving shared by the base model and the conditional-generation model."""

    config_class = AlignedLlavaConfig
    config: AlignedLlavaConfig
    processor_source: tuple[str, str | None] | None = None  # folder or Hub id, and revision, of the weights
    _keep_in_fp32_modules_strict = ["multi_modal_projector.norm"]  # noqa: RUF012

    def post_init(self) -> None:
        super().post_init()
        forget_absent_layers(self)

    def _init_weights(self, module: nn.Module) -> None:
        # transformers resets every module whose class name contains "LayerNorm" to a gain of 1.
        if isinstance(module, GlobalWeightCompensatedLayerNorm):
            module.reset_parameters()  # transformers guards torch's initialisers: loaded tensors stay as they are
        else:
            super()._init_weights(module)

    def initialize_weights(self) -> None:
        """Initialise what is not loaded; a new norm without a known text norm is measured on the embeddings here.

        `_init_weights` cannot do it, because it visits the projector before the embeddings.
        """
        projector = cast(AlignedLlavaMultiModalProjector, self.base_model.multi_modal_projector)
        config, norm = self.config, projector.norm
        norm_loaded = norm is not None and any(getattr(p, "_is_hf_initialized", False) for p in norm.parameters())
        super().initialize_weights()
        embedding = cast(nn.Embedding, self.get_input_embeddings())
        if embedding.weight.is_meta:
            return
        if config.needs_stream_norm and config.stream_norm is None:
            raise ValueError(
                "this method needs stream_norm, which python -m modeling_aligned_llava.assembly measures on text"
            )
        if not config.needs_text_norm or config.text_norm is not None:
            return
        if norm_loaded:
            raise ValueError("the checkpoint holds a trained norm but its config no text_norm; set config.text_norm")
        config.text_norm = mean_embedding_norm(embedding)
        assert norm is not None
        set_initial_gain(norm, config)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args: Any, **kwargs: Any) -> Any:
        """Like the parent method, but keeps the projector unquantized, as it does the head, and requires all tensors.

        transformers would fill missing ones with random numbers. Only a norm that the checkpoint never had may be
        missing.

        Raises:
            OSError: a weights file is cut short, is not a safetensors file, or lacks tensors.
        """
        reports = kwargs.pop("output_loading_info", False)
        source = pretrained_model_name_or_path
        try:
            quantization = kwargs.get("quantization_config")
            if isinstance(quantization, BitsAndBytesConfig) and quantization.llm_int8_skip_modules is None:
                skip = [r".*multi_modal_projector", "lm_head"]  # regular expressions, matched from the start of a name
                kwargs["quantization_config"] = BitsAndBytesConfig(
                    **{**quantization.to_dict(), "llm_int8_skip_modules": skip}
                )
            if _RENAMED:
                kwargs.setdefault("key_mapping", _RENAMED)
            loaded: Any = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
            model, report = loaded
        except SafetensorError as error:
            raise OSError(f"{source}: a weights file is damaged or cut short ({error}); copy it again") from error
        if source is not None:
            missing = report["missing_keys"]
            if missing and _norm_is_new(source, kwargs):
                missing = [name for name in missing if "multi_modal_projector.norm." not in name]
            if missing and not reports:
                raise missing_tensors(source, missing)
            model.processor_source = (
                os.path.abspath(source) if os.path.isdir(source) else source,
                kwargs.get("revision"),
            )
        return (model, report) if reports else model

    def save_pretrained(
        self, save_directory: str | os.PathLike, is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Save the model with the code that loads it, its processor and a model card.

        `push_to_hub=True` uploads the folder as well; the arguments of `push_to_hub` are then accepted here.
        """
        publish = kwargs.pop("push_to_hub", False)
        names = ("repo_id", "private", "revision", "create_pr", "commit_message", "commit_description", "tags")
        destination = {name: kwargs.pop(name) for name in names if name in kwargs}
        self.config.auto_map = dict(_AUTO_MAP)
        forget_local_paths(self.config)
        # Save today's names, which are the only ones this class reads.
        self._weight_conversions = [WeightRenaming(*names) for names in _RENAMED.items()]
        wrapped = type(self)  # FSDP2 makes the model a subclass of its own, whose code would be saved and named
        self.__class__ = next(base for base in wrapped.__mro__ if base.__module__ == __name__)
        try:
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        finally:
            self.__class__ = wrapped
        if is_main_process:
            if self.processor_source is not None:
                copy_processor(*self.processor_source, save_directory)
            write_plain_card(self.config, save_directory)
        if publish:
            destination.setdefault("repo_id", os.path.basename(os.path.abspath(save_directory)))
            self.push_to_hub(**destination, token=kwargs.get("token"))

    def push_to_hub(self, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        """Save and upload in one commit; for arguments and result see `hub_folder.push`."""
        return push(self, *args, **kwargs)


def _norm_is_new(source: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the checkpoint itself has no norm: a fresh one is wanted by fields given to `from_pretrained`."""
    saved, _ = AlignedLlavaConfig.get_config_dict(source, **kwargs)
    default = AlignedLlavaConfig.projector_norm if saved.get("model_type") == AlignedLlavaConfig.model_type else "none"
    return saved.get("projector_norm", default) == "none"


class AlignedLlavaModel(AlignedLlavaPreTrainedModel, LlavaModel):
    """Vision tower, projector with its norm, and language model, without a head."""

    def __init__(self, config: AlignedLlavaConfig):
        super(LlavaModel, self).__init__(config)  # skips LlavaModel's own, which builds the plain projector
        self.vision_tower = AutoModel.from_config(config.vision_config)
        self.multi_modal_projector = AlignedLlavaMultiModalProjector(config)
        self.language_model = AutoModel.from_config(config.text_config)
        self.post_init()


class AlignedLlavaForConditionalGeneration(AlignedLlavaPreTrainedModel, LlavaForConditionalGeneration):
    """`AlignedLlavaModel` with the language-model head; use it like `LlavaForConditionalGeneration`."""

    def __init__(self, config: AlignedLlavaConfig):
        super(LlavaForConditionalGeneration, self).__init__(config)
        self.model = AlignedLlavaModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()


__all__ = ["AlignedLlavaForConditionalGeneration", "AlignedLlavaModel"]
