"""Build an untrained checkpoint from a vision tower and a language model, and measure the text norm (Eq. 11).

python -m modeling_aligned_llava.assembly --vision-tower DIR --language-model DIR --method norm-gwc --out DIR
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    LlavaProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from modeling_aligned_llava.configuration_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN
from modeling_aligned_llava.inspection.norm_parameters import alignment_norm
from modeling_aligned_llava.inspection.text_stream import mean_stream_norm
from modeling_aligned_llava.loading.chat_templates import choose_template
from modeling_aligned_llava.loading.checkpoint import check_source, end_tokens, load_part, load_strict
from modeling_aligned_llava.loading.files import build_once
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaForConditionalGeneration, set_initial_gain
from modeling_aligned_llava.norm_alignment import mean_embedding_norm


VOCABULARY_MULTIPLE = 64
_OF_A_BACKBONE = {"stage_names", "out_features", "out_indices"}  # derived from the number of layers


class TowerKind(NamedTuple):
    """How LLaVA reads the features of a vision tower.

    Args:
        select_strategy: "full": every token is a visual token; "default": the first, CLS, is dropped.
        any_size: images of any size are read; positions are resampled from the size of the training.
    """

    select_strategy: Literal["full", "default"]
    any_size: bool = False


# By the model type of the vision config; SigLIP2's towers of fixed resolution are siglip_vision_model too.
TOWERS: dict[str, TowerKind] = {
    "siglip_vision_model": TowerKind("full"),
    "clip_vision_model": TowerKind("default"),
    "dinov2": TowerKind("default", any_size=True),
    "dinov2_with_registers": TowerKind("default", any_size=True),  # LLaVA drops no registers: they are visual tokens
}


def assemble(
    vision_tower: str | Path,
    language_model: str | Path,
    out: str | Path,
    *,
    fields: dict[str, Any],
    seed: int = 42,
    chat_template: str | None = None,
    texts: Iterable[str] | None = None,
    exist_ok: bool = False,
) -> Path:
    """Write a checkpoint folder (weights, code, processor, chat template, generation config) that is ready to train.

    Args:
        vision_tower: folder or Hub id of a model in `TOWERS`. Its last layer and pooling head, which LLaVA's feature
            layer -2 leaves unused, are dropped: the same features for less work.
        language_model: folder or Hub id of a causal language model with its tokenizer.
        out: folder to write; it appears complete or not at all.
        fields: fields of `AlignedLlavaConfig`, as returned by `method_fields`.
        seed: seed of the projector; with one seed all methods start from the same projector.
        chat_template: name of a shipped template; None: the tokenizer's own, which must mark the supervised tokens.
        texts: training texts in order, for methods that measure the norm of text inside the decoder on the first 64.
        exist_ok: leave `out` as it is if it is there; of several processes that ask at the same moment, one assembles.

    Raises:
        UserError: a backbone is missing, incomplete or not supported, or `out` exists and `exist_ok` is not set.
    """
    make = partial(_assembled, vision_tower, language_model, fields, seed, chat_template, texts)
    return build_checkpoint(Path(out), make, exist_ok)


def build_checkpoint(
    out: Path, make: Callable[[], tuple[AlignedLlavaForConditionalGeneration, LlavaProcessor]], exist_ok: bool = False
) -> Path:
    """Write weights, code, processor and generation config of what `make` returns; `out` appears whole or not at all.

    Raises:
        UserError: `out` exists, and `exist_ok` is not set.
    """

    def build(folder: Path) -> None:
        model, processor = make()
        images: Any = processor.image_processor
        if getattr(images, "crop_size", None) is None:
            # By this name LlavaProcessor tells vLLM the number of an image's tokens. SigLIP's image processor does not
            # crop; with `do_center_crop` off, no pixel changes.
            images.crop_size, images.do_center_crop = images.size, False
        model.save_pretrained(folder)
        processor.save_pretrained(folder)

    if not build_once(out, build) and not exist_ok:
        raise UserError(f"{out} already exists: remove it or choose another --out")
    return out


def _assembled(
    vision_tower: str | Path,
    language_model: str | Path,
    fields: dict[str, Any],
    seed: int,
    chat_template: str | None,
    texts: Iterable[str] | None,
) -> tuple[AlignedLlavaForConditionalGeneration, LlavaProcessor]:
    check_source(vision_tower, "vision tower")
    check_source(language_model, "language model")
    tower = _load_tower(vision_tower)
    language = load_strict(AutoModelForCausalLM, language_model, "language model")
    tokenizer = load_part(SavedTokenizer, language_model, "tokenizer")
    image_processor = load_part(AutoImageProcessor, vision_tower, "image processor")
    template = choose_template(tokenizer, chat_template, language_model)

    if language.config.tie_word_embeddings and "embed_tokens" not in dict(language.base_model.named_children()):
        raise UserError(
            f"language model: {language_model} ({language.config.model_type}) ties its head to embeddings that "
            "LLaVA's class does not find (they are not called embed_tokens)"
        )
    text_norm = mean_embedding_norm(language.get_input_embeddings())  # before the vocabulary grows
    add_special_tokens(tokenizer)
    _resize_vocabulary(language, len(tokenizer))

    config = joined_config(tower.config, language.config, {**fields, "text_norm": text_norm})
    config.image_token_index = tokenizer.get_vocab()[IMAGE_TOKEN]
    config.text_config.pad_token_id = tokenizer.pad_token_id
    model = _join(config, tower, language, seed)
    _check_same_logits(model, language, language_model)
    dropped = config.vision_feature_select_strategy == "default"  # which LlavaProcessor subtracts again
    processor = LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=tower.config.patch_size,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        num_additional_image_tokens=visual_tokens(tower.config) - patches(tower.config) + dropped,
        chat_template=template,
        image_token=IMAGE_TOKEN,
    )
    if config.needs_stream_norm and config.stream_norm is None:
        config.stream_norm = mean_stream_norm(model, tokenizer, texts or (), config.stream_layer)
    if (norm := alignment_norm(model)) is not None:
        set_initial_gain(norm, config)
    model.generation_config = language.generation_config
    model.generation_config._from_model_config = False  # or transformers would derive it from the config again
    # Chat models have several, and their configs disagree on which.
    model.generation_config.eos_token_id = end_tokens(language.generation_config, language.config, tokenizer)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    # Hub ids are for the model card; `save_pretrained` removes local paths.
    config.vision_config.name_or_path, config.text_config.name_or_path = str(vision_tower), str(language_model)
    return model, processor


def tower_configs(source: str | Path) -> tuple[PreTrainedConfig, PreTrainedConfig]:
    """The configuration of a whole model and of its vision tower, without the layer and head that LLaVA leaves unused.

    Both are one if `source` holds a tower alone.

    Raises:
        UserError: there is none, or its kind is not supported.
    """
    config = load_part(AutoConfig, source, "vision tower")
    tower = getattr(config, "vision_config", config)
    if tower.model_type == "siglip2_vision_model":
        raise UserError(f"vision tower: {source} is a NaFlex tower (any resolution); LLaVA takes SigLIP2's fixed ones")
    if tower.model_type not in TOWERS:
        raise UserError(f"vision tower: {source} is a {tower.model_type}, not one of {', '.join(TOWERS)}")
    tower.num_hidden_layers -= 1
    if tower.model_type == "siglip_vision_model":
        tower.vision_use_head = False
    if TOWERS[tower.model_type].any_size:  # what its image processor makes; its stages are those of a backbone
        shape = tower.to_dict() | {"image_size": _image_side(source)}
        config = tower = type(tower)(**{name: shape[name] for name in shape.keys() - _OF_A_BACKBONE})
    return config, tower


def _image_side(source: str | Path) -> int:
    images: Any = load_part(AutoImageProcessor, source, "image processor")
    size = images.crop_size if getattr(images, "do_center_crop", False) else images.size
    height, width = size.get("height"), size.get("width")
    if height is None or height != width:
        raise UserError(f"vision tower: {source}: its image processor makes images that are not squares of one size")
    return height


def joined_config(vision: PreTrainedConfig, text: PreTrainedConfig, fields: dict[str, Any]) -> AlignedLlavaConfig:
    """The configuration of a LLaVA that joins a tower of `tower_configs` and a language model.

    Args:
        vision, text: their configurations.
        fields: further fields of `AlignedLlavaConfig`.
    """
    return AlignedLlavaConfig(
        vision_config=vision,
        text_config=text,
        image_seq_length=visual_tokens(vision),
        vision_feature_layer=-1,
        vision_feature_select_strategy=TOWERS[vision.model_type].select_strategy,
        tie_word_embeddings=text.tie_word_embeddings,
        **fields,
    )


def patches(vision: PreTrainedConfig) -> int:
    """The number of patches of an image."""
    return (vision.image_size // vision.patch_size) ** 2


def visual_tokens(vision: PreTrainedConfig) -> int:
    """The number of visual tokens of an image: its patches, and registers."""
    return patches(vision) + getattr(vision, "num_register_tokens", 0)


def _load_tower(source: str | Path) -> PreTrainedModel:
    config, tower = tower_configs(source)
    side = tower.image_size
    if TOWERS[tower.model_type].any_size:
        tower.image_size = load_part(AutoConfig, source, "vision tower").image_size
    model = load_strict(AutoModel, source, "vision tower", unused=".*", config=config)  # the dropped layers
    if tower.image_size != side:
        model.config.image_size = side
        positions, width = model.embeddings.position_embeddings, tower.hidden_size
        shape = torch.empty(1, patches(model.config) + 1, width)  # of which the tower's own resampling reads the size
        with torch.no_grad():
            table = model.embeddings.interpolate_pos_encoding(shape, side, side)
        model.embeddings.position_embeddings = nn.Parameter(table.to(positions.dtype))
    return model if tower is config else model.vision_model


def add_special_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Add `<image>`, and a pad token where it is missing or the end of sequence, which masking would then hide."""
    vocabulary = tokenizer.get_vocab()
    if IMAGE_TOKEN not in vocabulary:
        image = AddedToken(IMAGE_TOKEN, special=True, normalized=False)
        tokenizer.add_special_tokens({"extra_special_tokens": [image]}, replace_extra_special_tokens=False)
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        known = next((t for t in ("<|finetune_right_pad_id|>", "<|endoftext|>", "<pad>") if t in vocabulary), None)
        tokenizer.add_special_tokens({"pad_token": known if known not in (None, tokenizer.eos_token) else "<|pad|>"})


@torch.no_grad()
def _resize_vocabulary(language: Any, tokens: int) -> None:
    """Grow the vocabulary to a multiple of 64; new rows are the mean row, which draws no random numbers."""
    old: int = language.get_input_embeddings().num_embeddings
    new = VOCABULARY_MULTIPLE * math.ceil(max(old, tokens) / VOCABULARY_MULTIPLE)
    if new == old:
        return
    language.resize_token_embeddings(new, mean_resizing=False)
    for layer in (language.get_input_embeddings(), language.get_output_embeddings()):
        layer.weight[old:] = layer.weight[:old].float().mean(0).to(layer.weight.dtype)


@torch.no_grad()
def _join(
    config: AlignedLlavaConfig, tower: PreTrainedModel, language: Any, seed: int
) -> AlignedLlavaForConditionalGeneration:
    with torch.device("meta"):
        model = AlignedLlavaForConditionalGeneration(config)
    model.model.vision_tower = tower
    model.model.language_model = language.base_model
    model.lm_head.weight = language.get_output_embeddings().weight  # without its bias, which would not be saved
    model.tie_weights()
    projector = model.model.multi_modal_projector.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for linear in (projector.linear_1, projector.linear_2):
        # Torch's default for nn.Linear, as in LLaVA's own code; transformers' std of 0.02 shrinks visual norms.
        bound = 1 / math.sqrt(linear.in_features)
        for parameter in linear.parameters():
            parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
    return model.to(language.dtype).eval()


@torch.no_grad()
def _check_same_logits(model: AlignedLlavaForConditionalGeneration, language: Any, source: str | Path) -> None:
    """Reject LM heads that are not purely linear; LLaVA's class would silently drop what they add."""
    ids = torch.arange(8)[None]
    if not torch.equal(model(input_ids=ids).logits, language.eval()(input_ids=ids).logits):
        raise UserError(
            f"language model: {source} ({language.config.model_type}) changes its logits after the linear head "
            "(bias, scale or cap), which LLaVA's class does not do"
        )
