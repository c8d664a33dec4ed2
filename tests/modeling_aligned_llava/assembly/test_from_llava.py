"""A llava-hf checkpoint becomes an aligned one of any method; anything else is refused in one line."""

import pytest
import torch
from PIL import Image
from transformers import (
    AutoProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
)

from modeling_aligned_llava import mean_embedding_norm, method_fields
from modeling_aligned_llava.assembly.__main__ import main
from modeling_aligned_llava.assembly.from_llava import convert
from modeling_aligned_llava.norm_alignment import target_gain
from tests.conftest import tiny_tokenizer
from tests.modeling_aligned_llava.loaded import load
from tests.one_line import one_line


SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def llava_checkpoints(tmp_path_factory):
    """Folders as llava-hf publishes them (CLIP, feature layer -2, old key names): untied Llama and tied Qwen2."""
    folders = {}
    for name, text_config in (("llama", LlamaConfig), ("qwen2", Qwen2Config)):
        folders[name] = tmp_path_factory.mktemp("llava") / name
        torch.manual_seed(0)
        tokenizer = tiny_tokenizer()
        tokenizer.add_special_tokens({"extra_special_tokens": ["<image>"]})
        tied = name == "qwen2"
        config = LlavaConfig(
            vision_config=CLIPVisionConfig(**SHAPE, image_size=28, patch_size=14),
            text_config=text_config(**SHAPE, vocab_size=320, num_key_value_heads=2, tie_word_embeddings=tied),
            image_token_index=tokenizer.get_vocab()["<image>"],
            image_seq_length=4,
            tie_word_embeddings=tied,
        )
        LlavaForConditionalGeneration(config).save_pretrained(folders[name])
        size = {"height": 28, "width": 28}
        LlavaProcessor(
            image_processor=CLIPImageProcessor(size=size, crop_size=size),
            tokenizer=tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ).save_pretrained(folders[name])
    return folders


@pytest.mark.parametrize("decoder", ["llama", "qwen2"])
@pytest.mark.parametrize("method", ["baseline", "norm-gwc", "norm-relative", "norm-fixed", "projector-rescaled"])
def test_weights_stay_and_the_norm_is_new(llava_checkpoints, tiny_images, tmp_path, decoder, method):
    source = llava_checkpoints[decoder]
    folder = convert(source, tmp_path / "out", fields=method_fields(method), images=tiny_images)
    theirs, ours = LlavaForConditionalGeneration.from_pretrained(source).eval(), load(folder)
    processor = AutoProcessor.from_pretrained(folder)
    batch = processor(images=[Image.open(tiny_images[0])], text=["<image>\nwhat?"], return_tensors="pt")
    assert ours.config.text_norm == mean_embedding_norm(theirs.get_input_embeddings())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name
    with torch.no_grad():
        ours_logits, their_logits = ours(**batch).logits, theirs(**batch).logits
        text = {"input_ids": batch["input_ids"][:, -5:]}
        assert torch.equal(ours(**text).logits, theirs(**text).logits)
    assert torch.equal(ours_logits, their_logits) == (method == "baseline")
    if method == "norm-gwc":
        gain = target_gain(ours.config.text_norm, 32)
        assert torch.equal(ours.model.multi_modal_projector.norm.weight, torch.full((32,), gain))
    assert (ours.lm_head.weight is ours.get_input_embeddings().weight) == (decoder == "qwen2")
    assert str(source) not in (folder / "config.json").read_text()


def test_a_half_precision_checkpoint_gets_a_float32_norm(llava_checkpoints, tmp_path):
    half = LlavaForConditionalGeneration.from_pretrained(llava_checkpoints["llama"], dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    AutoProcessor.from_pretrained(llava_checkpoints["llama"]).save_pretrained(tmp_path / "half")
    model = load(convert(tmp_path / "half", tmp_path / "out", fields=method_fields("norm")), dtype="auto")
    norm = model.model.multi_modal_projector.norm
    assert (model.lm_head.weight.dtype, norm.weight.dtype) == (torch.bfloat16, torch.float32)
    assert norm.weight[0].item() == torch.tensor(target_gain(model.config.text_norm, 32)).item()


def test_command_line_converts(llava_checkpoints, tmp_path, call, capsys):
    source = ["--llava", llava_checkpoints["llama"]]
    norm = [*source, "--method", "norm", "--out", tmp_path / "a"]
    call(main, *norm)
    assert "text norm s = 0.1" in capsys.readouterr().out
    (tmp_path / "texts.txt").write_text("a red ball\n\ntwo cats\n")
    stream = [*source, "--method", "norm-stream", "--out", tmp_path / "b", "--texts"]
    call(main, *stream, tmp_path / "texts.txt")
    assert "text enters layer 1 at " in capsys.readouterr().out
    with one_line(r"--texts: there is no file .*none\.txt"):
        call(main, *stream, tmp_path / "none.txt")
    with one_line("give --vision-tower and --language-model, or --llava alone"):
        call(main, *norm, "--language-model", "x")


def test_what_is_no_llava_checkpoint_is_refused_in_one_line(llava_checkpoints, tiny_backbones, tiny_images, tmp_path):
    source = llava_checkpoints["llama"]
    truncated, lacking = tmp_path / "truncated", tmp_path / "lacking"
    model = LlavaForConditionalGeneration.from_pretrained(source)
    for folder in (truncated, lacking):
        AutoProcessor.from_pretrained(source).save_pretrained(folder)
        state = {k: v for k, v in model.state_dict().items() if folder is truncated or "layers.1" not in k}
        model.save_pretrained(folder, state_dict=state)
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    for folder, images, method, message in (
        (tiny_backbones.qwen2, None, "norm", "is a qwen2 model, not llava"),
        (truncated, None, "norm", "LLaVA checkpoint: cannot load .*truncated"),
        (lacking, None, "norm", r"lacks the tensors model\.language_model\.layers\.1.* more"),
        (source, None, "norm-geomean", "target is measured on training images: there are none"),
        (source, None, "norm-stream", r"text at layer 1 is measured on training text: there is none \(--texts\)"),
        (source, [broken], "norm-geomean", "broken.png cannot be read as an image"),
    ):
        with one_line(message):
            convert(folder, tmp_path / "out", fields=method_fields(method), images=images)
        assert not (tmp_path / "out").exists()
    with one_line("holds a llava model, not aligned_llava", ValueError):
        load(source, **method_fields("norm"))
