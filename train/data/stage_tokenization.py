"""The tokenization of a stage without its model: from the checkpoint or, before stage 1, from the two backbones."""

from pathlib import Path

from transformers import AutoConfig, AutoProcessor, PreTrainedTokenizerBase
from trl import SFTConfig

from modeling_aligned_llava.assembly.checkpoint_folder import choose_template
from modeling_aligned_llava.assembly.from_backbones import add_special_tokens, patches, tower_configs
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN
from modeling_aligned_llava.loading.chat_templates import chat_template
from modeling_aligned_llava.loading.checkpoint import load_part
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from train.arguments.model import ModelArguments
from train.arguments.parse import RunArguments
from train.data.tokenization import Tokenization


def stage_tokenization(
    run: RunArguments, training: SFTConfig, backbones: ModelArguments | None = None
) -> Tokenization:
    """The tokenization of a stage.

    Args:
        run, training: the settings of the stage.
        backbones: settings of stage 1, in case stage 2 is asked for before stage 1 is trained.

    Raises:
        UserError: there is neither a checkpoint nor backbones, or they cannot be read.
    """
    model = run.model
    assembled = Path(str(training.output_dir)) / "assembled"
    checkpoint = model.model_name_or_path or (assembled if assembled.exists() else None)
    if checkpoint is not None and not (Path(checkpoint) / "config.json").is_file():
        if backbones is None:
            raise UserError(f"model_name_or_path: there is no checkpoint in {checkpoint}; run stage 1 first")
        model, checkpoint = backbones, None
    if checkpoint is not None:
        processor = load_part(AutoProcessor, checkpoint)
        image_tokens = load_part(AutoConfig, checkpoint).image_seq_length
        return tokenization(run, training, processor.tokenizer, str(processor.chat_template), image_tokens)
    assert model.language_model is not None and model.vision_tower is not None
    tokenizer = load_part(SavedTokenizer, model.language_model, "tokenizer")
    template = choose_template(tokenizer, model.chat_template, model.language_model)
    add_special_tokens(tokenizer)
    return tokenization(run, training, tokenizer, template, patches(tower_configs(model.vision_tower)[1]))


def tokenization(
    run: RunArguments, training: SFTConfig, tokenizer: PreTrainedTokenizerBase, template: str, image_tokens: int
) -> Tokenization:
    """The tokenization of a stage whose checkpoint has this tokenizer, template and number of tokens an image."""
    return Tokenization(
        tokenizer,
        template=chat_template("plain") if run.data.prompt_format == "plain" else template,
        image_token_id=tokenizer.get_vocab()[IMAGE_TOKEN],
        image_tokens=image_tokens,
        max_length=training.max_length,
    )
