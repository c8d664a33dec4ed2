"""How the rows of a stage become tokens: as its checkpoint says or, before stage 1, its two backbones."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoProcessor, PreTrainedTokenizerBase

from modeling_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.alignment import check_family
from modeling_aligned_llava.assembly.from_backbones import add_special_tokens, tower_configs, visual_tokens
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.prompt import names_image_token
from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN
from modeling_aligned_llava.loading.chat_templates import chat_template, choose_template, template_of
from modeling_aligned_llava.loading.checkpoint import load_part
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from train.data.family_tokens import FamilyTokens
from train.data.llava_tokens import LlavaTokens
from train.data.row_tokens import RowTokens
from train.parse import Settings
from train.settings import ModelArguments
from train.start import trained_checkpoint


def tokens_without_model(settings: Settings, backbones: ModelArguments | None = None) -> RowTokens:
    """How rows of a stage become tokens, from its checkpoint or, before stage 1, from the two backbones.

    Args:
        settings: of the stage.
        backbones: settings of stage 1, in case stage 2 is asked for before stage 1 is trained.

    Raises:
        UserError: there is neither a checkpoint nor backbones, or they cannot be read.
    """
    model, prompt_format, max_length = settings.model, settings.data.prompt_format, settings.training.max_length
    assembled = Path(str(settings.training.output_dir)) / "assembled"
    checkpoint = model.model_name_or_path or (assembled if assembled.exists() else None)
    if checkpoint is not None:
        try:
            folder = trained_checkpoint(str(checkpoint))
        except UserError:
            if backbones is None:
                raise
            model = backbones
        else:
            config, processor = load_part(AutoConfig, folder), load_part(AutoProcessor, folder)
            return row_tokens(config, processor, prompt_format, max_length, model.merge_adapters)
    assert model.language_model is not None and model.vision_tower is not None
    tokenizer = load_part(SavedTokenizer, model.language_model, "tokenizer")
    template = choose_template(tokenizer, model.chat_template, model.language_model)
    add_special_tokens(tokenizer)
    image_tokens = visual_tokens(tower_configs(model.vision_tower)[1])
    return _llava_tokens(tokenizer, template, image_tokens, prompt_format, max_length)


def row_tokens(
    config: Any, processor: Any, prompt_format: str, max_length: int | None, merge_adapters: bool = True
) -> RowTokens:
    """How rows become tokens of a checkpoint with this config and processor: stored as tokens for a model of ours, as
    text for others.

    Raises:
        UserError: the family or its processor cannot be served, or a setting is for models of ours, or others, only.
    """
    if config.model_type == AlignedLlavaConfig.model_type:
        if not merge_adapters:
            raise UserError("merge_adapters: false is for models of other families")
        template = template_of(processor)
        if template is None:
            raise UserError("neither the model's processor nor its tokenizer has a chat template")
        return _llava_tokens(processor.tokenizer, template, config.image_seq_length, prompt_format, max_length)
    check_family(config.model_type)
    if not names_image_token(processor):
        raise UserError(f"{config.model_type} cannot be trained: its processor names no image token")
    if processor.tokenizer.pad_token_id is None:
        processor.tokenizer.pad_token = processor.tokenizer.eos_token
    if prompt_format == "plain":
        raise UserError(f"prompt_format: plain is for models assembled here, not for {config.model_type}")
    return FamilyTokens(processor, config, max_length)


def _llava_tokens(
    tokenizer: PreTrainedTokenizerBase, template: str, image_tokens: int, prompt_format: str, max_length: int | None
) -> LlavaTokens:
    return LlavaTokens(
        tokenizer,
        template=chat_template("plain") if prompt_format == "plain" else template,
        image_token_id=tokenizer.get_vocab()[IMAGE_TOKEN],
        image_tokens=image_tokens,
        max_length=max_length,
    )
