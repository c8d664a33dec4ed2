"""Assembly: the measured text norm, unchanged backbones, equal projectors, special tokens, clear errors."""

import json

import pytest
import torch
import transformers as hf
from PIL import Image

from modeling_aligned_llava import AlignedLlavaConfig, method_fields
from modeling_aligned_llava.assembly.__main__ import main
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.loading.chat_templates import chat_template
from tests.modeling_aligned_llava.loaded import load
from tests.one_line import one_line


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
    processor = hf.AutoProcessor.from_pretrained(folder)
    batch = processor(images=[Image.new("L", (9, 70))], text=["<image>\nhi"], return_tensors="pt")
    assert (batch["input_ids"] == config.image_token_id).sum() == config.image_seq_length == 4
    assert (config.vision_feature_select_strategy, processor.vision_feature_select_strategy) == ("full", "full")
    assert processor.num_additional_image_tokens == 0
    assert processor._get_num_multimodal_tokens([(9, 70), (50, 20)])["num_image_tokens"] == [4, 4]  # as vLLM asks
    assert processor.tokenizer.pad_token_id != processor.tokenizer.eos_token_id
    assert "<image>" in processor.tokenizer.all_special_tokens
    assert processor.chat_template == processor.tokenizer.chat_template == chat_template("tinyworld")


def test_pad_token_and_end_of_sequence_ids(tiny_backbones, tmp_path):
    language = tmp_path / "language"
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny_backbones.qwen2)
    tokenizer.pad_token = tokenizer.eos_token
    model = hf.AutoModelForCausalLM.from_pretrained(tiny_backbones.qwen2)
    model.generation_config.eos_token_id = [7, 2]
    model.config.eos_token_id = 5
    model.save_pretrained(language)
    tokenizer.save_pretrained(language)
    folder = assemble(tiny_backbones.vision, language, tmp_path / "out", fields=method_fields("norm"))
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 5, 7]
    pad = hf.AutoTokenizer.from_pretrained(folder).pad_token_id
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
    naflex = tmp_path / "naflex"
    hf.Siglip2VisionModel(hf.Siglip2VisionConfig(**SHAPE, patch_size=14)).save_pretrained(naflex)
    for tower, out, template, message in (
        (language, tmp_path / "a", None, "is a qwen2, not one of siglip_vision_model"),
        (vision, tmp_path / "a", "x", "unknown chat template 'x'; shipped templates: llama3, plain"),
        (vision, there, None, "already exists"),
        (naflex, tmp_path / "a", None, "is a NaFlex tower"),
        (empty, tmp_path / "a", None, r"vision tower: cannot load .*empty"),
    ):
        with one_line(message):
            assemble(tower, language, out, fields=method_fields("norm"), chat_template=template)
    with one_line(r"text at layer 1 is measured on training text: there is none \(--texts\)"):
        assemble(vision, language, tmp_path / "a", fields=method_fields("norm-stream"))
    assert not (tmp_path / "a").exists()


SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
PATCHES = {"image_size": 28, "patch_size": 14}
SQUARE = {"height": 28, "width": 28}


def whole_siglip(folder):
    """Of which assembly takes the tower."""
    config = hf.SiglipConfig(text_config={**SHAPE, "vocab_size": 20}, vision_config={**SHAPE, **PATCHES})
    hf.SiglipModel(config).save_pretrained(folder)
    hf.SiglipImageProcessor(size=SQUARE).save_pretrained(folder)
    return folder, hf.SiglipModel.from_pretrained(folder).vision_model


def clip_tower(folder):
    hf.CLIPVisionModel(hf.CLIPVisionConfig(**SHAPE, **PATCHES)).save_pretrained(folder)
    hf.CLIPImageProcessor(size=SQUARE, crop_size=SQUARE).save_pretrained(folder)
    return folder, hf.CLIPVisionModel.from_pretrained(folder)


def dinov2_tower(folder, **registers):
    """Trained at 3 x 3 patches, with a processor that makes 2 x 2, as the Hub's: 518 and 224 pixels."""
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    shape = {name: size for name, size in SHAPE.items() if name != "intermediate_size"}
    config = getattr(hf, f"{kind}Config")(**shape, **registers, image_size=42, patch_size=14)
    getattr(hf, f"{kind}Model")(config).save_pretrained(folder)
    hf.BitImageProcessor(size={"shortest_edge": 32}, crop_size=SQUARE).save_pretrained(folder)
    return folder, getattr(hf, f"{kind}Model").from_pretrained(folder)


def dinov2_with_registers(folder):
    return dinov2_tower(folder, num_register_tokens=3)


@pytest.mark.parametrize("tower", ["siglip", whole_siglip, clip_tower, dinov2_tower, dinov2_with_registers])
def test_a_tower_gives_llava_its_penultimate_patch_features(tiny_backbones, tmp_path, tower):
    """Of the pixels that its own processor makes; its last layer and its head are not kept."""
    if tower == "siglip":
        folder, source = tiny_backbones.vision, hf.SiglipVisionModel.from_pretrained(tiny_backbones.vision)
    else:
        folder, source = tower(tmp_path / "tower")
    out = assemble(folder, tiny_backbones.llama, tmp_path / "out", fields=method_fields("baseline"))
    model, processor = load(out), hf.AutoProcessor.from_pretrained(out)
    image = Image.effect_noise((90, 40), 80).convert("RGB")
    batch = processor(images=[image], text=["<image>"], return_tensors="pt")
    processed = hf.AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")
    assert torch.equal(batch["pixel_values"], processed["pixel_values"])
    first = 0 if tower in ("siglip", whole_siglip) else 1  # after CLS
    tokens = 7 if tower is dinov2_with_registers else 4
    with torch.no_grad():
        features = source.eval()(batch["pixel_values"], output_hidden_states=True).hidden_states[-2][:, first:]
        expected = model.model.multi_modal_projector(features)
        ours = model.get_image_features(batch["pixel_values"]).pooler_output
        assert torch.equal(torch.stack(ours), expected)
        assert model(**batch).logits.shape[1] == batch["input_ids"].shape[1] == model.config.image_seq_length == tokens
    assert not [name for name, _ in model.named_parameters() if ".head." in name or "layers.2." in name]


DECODER = {"vocab_size": 259, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}


def save_decoder(kind, source, folder):
    """A random decoder of a family with the tokenizer of `source`; every parameter differs from zero."""
    wide = {"n_inner": 64} if kind == "GPT2" else {"intermediate_size": 64}
    wide |= {"head_dim": 16, "num_key_value_heads": 2} if kind.startswith("Gemma") else {}
    config = getattr(hf, f"{kind}Config")(**DECODER, **wide, bos_token_id=None, eos_token_id=2)
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    hf.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize(
    "decoder",
    [
        "qwen2",  # untied
        "llama",  # tied
        "Gemma",  # tied, scales its embeddings
        "GPTNeoX",  # untied, embeddings under another name, LayerNorm
    ],
)
def test_a_decoder_keeps_its_logits_and_its_text_norm_is_measured_before_the_vocabulary_grows(
    tiny_checkpoint, tiny_backbones, tmp_path, decoder
):
    if decoder in ("qwen2", "llama"):
        source = hf.AutoModelForCausalLM.from_pretrained(getattr(tiny_backbones, decoder)).eval()
        model = load(tiny_checkpoint("norm-gwc", decoder))
        assert (model.lm_head.weight is model.get_input_embeddings().weight) == (decoder == "llama")
    else:
        source = save_decoder(decoder, tiny_backbones.qwen2, tmp_path / "decoder")
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
    ("kind", "message"),
    [
        ("Gemma2", "gemma2.* changes its logits after the linear head"),
        ("Phi", "phi.* changes its logits after the linear head"),
        ("GPT2", "gpt2.* ties its head to embeddings that LLaVA's class does not find"),
    ],
)
def test_decoders_that_llava_would_change_silently_are_refused(tiny_backbones, tmp_path, kind, message):
    save_decoder(kind, tiny_backbones.qwen2, tmp_path / "decoder")
    with one_line(message):
        assemble(tiny_backbones.vision, tmp_path / "decoder", tmp_path / "out", fields=method_fields("norm"))
    assert not (tmp_path / "out").exists()
