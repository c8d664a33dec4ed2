"""Assembly: the measured text norm, unchanged backbones, equal projectors, special tokens, clear errors."""

import json

import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Siglip2VisionConfig,
    Siglip2VisionModel,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
    SiglipVisionModel,
)

from modeling_aligned_llava import AlignedLlavaConfig, method_fields
from modeling_aligned_llava.assembly.__main__ import main
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.loading.chat_templates import chat_template
from tests.modeling_aligned_llava.loaded import load
from tests.one_line import one_line


def test_dropping_the_last_vision_layer_leaves_the_features_of_layer_minus_two(tiny_checkpoint, tiny_backbones):
    source = SiglipVisionModel.from_pretrained(tiny_backbones.vision).eval()
    model = load(tiny_checkpoint("norm"))
    pixels = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        ours = model.model.vision_tower(pixels, output_hidden_states=True)
        theirs = source(pixels, output_hidden_states=True)
    layer = model.config.vision_feature_layer
    assert torch.equal(ours.hidden_states[layer], theirs.hidden_states[-2])
    assert not [name for name, _ in model.named_parameters() if ".head." in name or "layers.2." in name]


def test_every_arm_starts_from_the_same_projector_in_torch_default_init(tiny_checkpoint, tiny_backbones, tmp_path):
    projectors = [
        load(tiny_checkpoint(method)).model.multi_modal_projector for method in ("baseline", "norm", "norm-gwc")
    ]
    for name in ("linear_1.weight", "linear_1.bias", "linear_2.weight", "linear_2.bias"):
        first, *others = (projector.get_parameter(name) for projector in projectors)
        assert all(torch.equal(first, other) for other in others)
        assert 0.5 < first.abs().max().item() * 32**0.5 <= 1  # uniform within 1 / sqrt(fan_in)
    fields = method_fields("norm")
    other = assemble(tiny_backbones.vision, tiny_backbones.qwen2, tmp_path / "seed7", fields=fields, seed=7)
    assert not torch.equal(load(other).model.multi_modal_projector.linear_1.weight, projectors[0].linear_1.weight)


def test_processor_counts_the_tokens_the_tower_makes(tiny_checkpoint):
    folder = tiny_checkpoint("norm")
    config = AlignedLlavaConfig.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    batch = processor(images=[Image.new("L", (9, 70))], text=["<image>\nhi"], return_tensors="pt")
    assert (batch["input_ids"] == config.image_token_id).sum() == config.image_seq_length == 4
    assert (config.vision_feature_select_strategy, processor.vision_feature_select_strategy) == ("full", "full")
    assert processor.num_additional_image_tokens == 0
    assert processor._get_num_multimodal_tokens([(9, 70), (50, 20)])["num_image_tokens"] == [4, 4]  # as vLLM asks
    assert processor.tokenizer.pad_token_id != processor.tokenizer.eos_token_id
    assert "<image>" in processor.tokenizer.all_special_tokens
    assert processor.chat_template == processor.tokenizer.chat_template == chat_template("tinyworld")


def test_pixels_are_those_of_the_towers_own_processor(tiny_checkpoint, tiny_backbones):
    picture = Image.effect_noise((90, 40), 80).convert("RGB")
    ours, theirs = (AutoImageProcessor.from_pretrained(f) for f in (tiny_checkpoint("norm"), tiny_backbones.vision))
    assert torch.equal(
        ours(picture, return_tensors="pt").pixel_values, theirs(picture, return_tensors="pt").pixel_values
    )


def test_pad_token_and_end_of_sequence_ids(tiny_backbones, tmp_path):
    language = tmp_path / "language"
    tokenizer = AutoTokenizer.from_pretrained(tiny_backbones.qwen2)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(tiny_backbones.qwen2)
    model.generation_config.eos_token_id = [7, 2]
    model.config.eos_token_id = 5
    model.save_pretrained(language)
    tokenizer.save_pretrained(language)
    folder = assemble(tiny_backbones.vision, language, tmp_path / "out", fields=method_fields("norm"))
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 5, 7]
    pad = AutoTokenizer.from_pretrained(folder).pad_token_id
    assert pad not in generation["eos_token_id"] and generation["pad_token_id"] == pad


def test_command_line_assembles(tiny_backbones, tmp_path, call, capsys):
    parts = ["--vision-tower", tiny_backbones.vision, "--language-model", tiny_backbones.qwen2]
    call(main, *parts, "--out", tmp_path / "a", "--method", "norm")
    assert "text norm s = 0.1" in capsys.readouterr().out
    assert AlignedLlavaConfig.from_pretrained(tmp_path / "a").method == "norm"
    (tmp_path / "texts.txt").write_text("a red ball\n\ntwo cats\n")
    stream = [*parts, "--method", "norm-stream", "--out", tmp_path / "b", "--texts"]
    call(main, *stream, tmp_path / "texts.txt")
    assert "text enters layer 1 at " in capsys.readouterr().out
    with one_line(r"--texts: there is no file .*none\.txt"):
        call(main, *stream, tmp_path / "none.txt")


def test_user_errors_name_the_culprit(tiny_backbones, tmp_path):
    with one_line("unknown method 'nrom'; known methods: baseline, norm, norm-gwc"):
        method_fields("nrom")
    vision, language = tiny_backbones.vision, tiny_backbones.qwen2
    there, empty = tmp_path / "there", tmp_path / "empty"
    there.mkdir(), empty.mkdir()
    for tower, out, template, message in (
        (language, tmp_path / "a", None, "is a qwen2, not one of siglip_vision_model"),
        (vision, tmp_path / "a", "x", "unknown chat template 'x'; shipped templates: llama3, plain"),
        (vision, there, None, "already exists"),
        (empty, tmp_path / "a", None, r"vision tower: cannot load .*empty"),
    ):
        with one_line(message):
            assemble(tower, language, out, fields=method_fields("norm"), chat_template=template)
    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    for images, method, message in (
        (None, "norm-geomean", "target is measured on training images: there are none"),
        (None, "norm-stream", r"text at layer 1 is measured on training text: there is none \(--texts\)"),
        ([broken], "norm-geomean", "broken.png cannot be read as an image"),
    ):
        with one_line(message):
            assemble(vision, language, tmp_path / "a", fields=method_fields(method), images=images)
        assert not (tmp_path / "a").exists()


def test_an_interrupted_write_leaves_nothing(tiny_backbones, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.LlavaProcessor.save_pretrained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        assemble(tiny_backbones.vision, tiny_backbones.qwen2, tmp_path / "out", fields=method_fields("norm"))
    assert [file.name for file in tmp_path.iterdir()] == [".out.lock"]


SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}


def save_whole_siglip(folder):
    vision = {**SHAPE, "image_size": 28, "patch_size": 14}
    SiglipModel(SiglipConfig(text_config={**SHAPE, "vocab_size": 20}, vision_config=vision)).save_pretrained(folder)
    SiglipImageProcessor(size={"height": 28, "width": 28}).save_pretrained(folder)
    return SiglipModel.from_pretrained(folder).vision_model


def save_clip_tower(folder):
    CLIPVisionModel(CLIPVisionConfig(**SHAPE, image_size=28, patch_size=14)).save_pretrained(folder)
    size = {"height": 28, "width": 28}
    CLIPImageProcessor(size=size, crop_size=size).save_pretrained(folder)
    return CLIPVisionModel.from_pretrained(folder)


@pytest.mark.parametrize(("save", "first_patch"), [(save_whole_siglip, 0), (save_clip_tower, 1)])
def test_other_towers_give_llava_their_penultimate_patch_features(tiny_backbones, tmp_path, save, first_patch):
    source = save(tmp_path / "tower").eval()
    folder = assemble(tmp_path / "tower", tiny_backbones.llama, tmp_path / "out", fields=method_fields("baseline"))
    model, processor = load(folder), AutoProcessor.from_pretrained(folder)
    batch = processor(images=[Image.new("RGB", (40, 28), (9, 200, 9))], text=["<image>"], return_tensors="pt")
    with torch.no_grad():
        features = source(batch["pixel_values"], output_hidden_states=True).hidden_states[-2][:, first_patch:]
        expected = model.model.multi_modal_projector(features)
        ours = model.get_image_features(batch["pixel_values"]).pooler_output
        assert torch.equal(torch.stack(ours), expected)
        assert model(**batch).logits.shape[1] == batch["input_ids"].shape[1] == 4


DECODER = {"vocab_size": 259, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}


def save_decoder(model_class, config_class, source, folder):
    """A random decoder of a family with the tokenizer of `source`; every parameter differs from zero."""
    wide = {"n_inner": 64} if config_class is GPT2Config else {"intermediate_size": 64}
    wide |= {"head_dim": 16, "num_key_value_heads": 2} if config_class in (GemmaConfig, Gemma2Config) else {}
    model = model_class(config_class(**DECODER, **wide, bos_token_id=None, eos_token_id=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize(
    "decoder",
    [
        "qwen2",  # untied
        "llama",  # tied
        (GemmaForCausalLM, GemmaConfig),  # tied, scales its embeddings
        (GPTNeoXForCausalLM, GPTNeoXConfig),  # untied, embeddings under another name, LayerNorm
    ],
)
def test_a_decoder_keeps_its_logits_and_its_text_norm_is_measured_before_the_vocabulary_grows(
    tiny_checkpoint, tiny_backbones, tmp_path, decoder
):
    if isinstance(decoder, str):
        source = AutoModelForCausalLM.from_pretrained(getattr(tiny_backbones, decoder)).eval()
        model = load(tiny_checkpoint("norm-gwc", decoder))
        assert (model.lm_head.weight is model.get_input_embeddings().weight) == (decoder == "llama")
    else:
        source = save_decoder(*decoder, tiny_backbones.qwen2, tmp_path / "decoder")
        fields = method_fields("norm-gwc")
        model = load(assemble(tiny_backbones.vision, tmp_path / "decoder", tmp_path / "out", fields=fields))
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits[..., :259], source(input_ids=ids).logits)
        norms = source.get_input_embeddings()(torch.arange(259)).norm(dim=-1)
    assert model.config.text_norm == pytest.approx(norms[norms > 0].mean().item(), rel=1e-6)
    assert source.get_input_embeddings().num_embeddings == 259
    assert model.get_input_embeddings().num_embeddings == 320


@pytest.mark.parametrize(
    ("model_class", "config_class", "message"),
    [
        (Gemma2ForCausalLM, Gemma2Config, "gemma2.* changes its logits after the linear head"),
        (PhiForCausalLM, PhiConfig, "phi.* changes its logits after the linear head"),
        (GPT2LMHeadModel, GPT2Config, "gpt2.* ties its head to embeddings that LLaVA's class does not find"),
    ],
)
def test_decoders_that_llava_would_change_silently_are_refused(
    tiny_backbones, tmp_path, model_class, config_class, message
):
    save_decoder(model_class, config_class, tiny_backbones.qwen2, tmp_path / "decoder")
    with one_line(message):
        assemble(tiny_backbones.vision, tmp_path / "decoder", tmp_path / "out", fields=method_fields("norm"))
    assert not (tmp_path / "out").exists()


def test_a_naflex_tower_is_refused(tiny_backbones, tmp_path):
    Siglip2VisionModel(Siglip2VisionConfig(**SHAPE, patch_size=14)).save_pretrained(tmp_path / "naflex")
    with one_line("is a NaFlex tower"):
        assemble(tmp_path / "naflex", tiny_backbones.qwen2, tmp_path / "out", fields=method_fields("norm"))
