"""The model: arms, initialisation, saving and loading, and equality of the baseline with transformers' LLaVA."""

import json

import pytest
import torch
from PIL import Image
from transformers import (
    AutoModel,
    AutoModelForImageTextToText,
    AutoProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from modeling_aligned_llava import (
    AlignedLlavaConfig,
    AlignedLlavaForConditionalGeneration,
    AlignedLlavaModel,
    mean_embedding_norm,
    method_names,
)
from modeling_aligned_llava.norm_alignment import target_gain


METHODS = method_names()


@pytest.fixture(scope="module")
def inputs(tiny_checkpoint):
    processor = AutoProcessor.from_pretrained(tiny_checkpoint("baseline"))
    image = Image.new("RGB", (40, 30), (200, 30, 90))
    text = "<|im_start|>user\n<image>\nwhat?<|im_end|>\n<|im_start|>assistant\n"
    return processor(images=[image], text=[text], return_tensors="pt")


def load(folder, **kwargs):
    return AlignedLlavaForConditionalGeneration.from_pretrained(folder, **kwargs).eval()


def norm_of(model):
    return model.base_model.multi_modal_projector.norm


def small_config(checkpoint, **overrides):
    config = AlignedLlavaConfig.from_pretrained(checkpoint).to_dict()
    return AlignedLlavaConfig(**{**config, **overrides})


@pytest.mark.parametrize("decoder", ["qwen2", "llama"])
def test_baseline_is_bit_equal_to_transformers_llava(tiny_checkpoint, inputs, decoder):
    model = load(tiny_checkpoint("baseline", decoder))
    fields = {k: v for k, v in model.config.to_dict().items() if k not in ("model_type", "auto_map", "architectures")}
    theirs = LlavaForConditionalGeneration(LlavaConfig(**fields)).eval()
    theirs.load_state_dict(model.state_dict())
    assert norm_of(model) is None
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, theirs(**inputs).logits)


@pytest.mark.parametrize("method", METHODS)
def test_a_trained_checkpoint_survives_saving_and_loading(tiny_checkpoint, inputs, method, tmp_path):
    model = load(tiny_checkpoint(method))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "trained")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "trained").eval()
    assert type(again) is AlignedLlavaForConditionalGeneration and again.config.method == method
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    base = AutoModel.from_pretrained(tmp_path / "trained").eval()
    assert type(base) is AlignedLlavaModel
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, again(**inputs).logits)
        hidden = base(**inputs).last_hidden_state
        assert torch.equal(model.lm_head(hidden), again(**inputs).logits)


def test_methods_set_the_norm_they_are_named_for(tiny_checkpoint):
    start = target_gain(load(tiny_checkpoint("norm")).config.text_norm, 32)
    expected = {
        "norm": (start, 1.0, 0.0),
        "norm-gwc": (start, 1.0, 1.0),
        "norm-default-init": (1.0, 1.0, 0.0),
        "norm-relative": (1.0, start, 0.0),
    }
    for method, (gain, scale, exponent) in expected.items():
        norm = norm_of(load(tiny_checkpoint(method)))
        assert torch.equal(norm.weight, torch.full((32,), gain)) and not norm.bias.any(), method
        assert (norm.scale, norm.compensation_exponent) == (scale, exponent), method


@pytest.mark.parametrize(("method", "share"), [("norm", 1.0), ("norm-gwc", 1.0), ("norm-relative", 1.0)])
def test_visual_tokens_start_at_the_text_norm(tiny_checkpoint, inputs, method, share):
    model = load(tiny_checkpoint(method))
    visual = torch.cat(model.get_image_features(inputs["pixel_values"]).pooler_output)
    assert visual.norm(dim=-1).mean().item() == pytest.approx(share * model.config.text_norm, rel=0.01)


def test_a_model_built_from_a_config_measures_its_own_embeddings(tiny_checkpoint):
    config = small_config(tiny_checkpoint("norm-gwc"), text_norm=None)
    model = AlignedLlavaForConditionalGeneration(config)
    measured = mean_embedding_norm(model.get_input_embeddings())
    assert config.text_norm == measured
    assert torch.equal(norm_of(model).weight, torch.full((32,), target_gain(measured, 32)))
    relative = AlignedLlavaForConditionalGeneration(
        small_config(tiny_checkpoint("norm-relative"), text_norm=None, target_scale=2.0)
    )
    assert norm_of(relative).scale == target_gain(relative.config.text_norm, 32, 2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_without_norm_gets_an_aligned_one(tiny_checkpoint, dtype):
    baseline = tiny_checkpoint("baseline")
    overrides = {"projector_norm": "layernorm", "text_norm": None}
    model = load(baseline, dtype=dtype, **overrides)
    measured = mean_embedding_norm(model.get_input_embeddings())
    assert model.config.text_norm == measured
    assert norm_of(model).weight.dtype == torch.float32
    assert torch.equal(norm_of(model).weight, torch.full((32,), target_gain(measured, 32)))


def test_a_trained_gain_is_kept_in_float32_by_every_way_of_loading(tiny_checkpoint, tmp_path):
    model = load(tiny_checkpoint("norm-gwc"))
    trained = torch.linspace(0.01, 0.0134, 32)
    with torch.no_grad():
        norm_of(model).weight.copy_(trained)
    model.save_pretrained(tmp_path)
    for loaded in (
        load(tmp_path),
        load(tmp_path, dtype=torch.bfloat16),
        load(tmp_path).to(torch.bfloat16),
        load(tmp_path, device_map="cpu"),
    ):
        assert norm_of(loaded).weight.dtype == torch.float32
        assert torch.equal(norm_of(loaded).weight, trained)
    half = load(tmp_path, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    assert torch.equal(norm_of(load(tmp_path / "half", dtype=torch.bfloat16)).weight, trained)


def test_trained_norm_without_a_recorded_text_norm_is_refused(tiny_checkpoint, tmp_path):
    load(tiny_checkpoint("norm-gwc")).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_norm": None}))
    with pytest.raises(ValueError, match="no text_norm"):
        load(tmp_path)


def test_generates_in_bfloat16_and_trains_every_parameter_it_uses(tiny_checkpoint, inputs):
    model = load(tiny_checkpoint("norm-gwc"), dtype=torch.bfloat16)
    assert model.generate(**inputs.to(torch.bfloat16), max_new_tokens=3, do_sample=False).shape[1] > 3
    model = load(tiny_checkpoint("norm-gwc")).train()
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None}
    assert idle == {"model.vision_tower.post_layernorm.weight", "model.vision_tower.post_layernorm.bias"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("method", "nrom", "unknown method 'nrom'; known methods: baseline, norm, norm-gwc"),
        ("text_norm", -1.0, "text_norm must be a number above 0 or null, not -1.0"),
        ("target_scale", -2, "target_scale must be a number above 0, not -2"),
        ("projector_norm", "batchnorm", "projector_norm must be one of none, layernorm, not 'batchnorm'"),
        ("norm_init", 3, "norm_init must be one of text, ones, not 3"),
        ("norm_eps", 0, "norm_eps must be a number above 0, not 0"),
        ("text_norm", float("nan"), "text_norm must be a number above 0 or null, not nan"),
        ("compensation_exponent", 2, "compensation_exponent must be from 0 to 1, not 2"),
        ("compensation_max", -1, "compensation_max must be a number above 0 or null, not -1"),
        ("target_scale", "k", "target_scale must be a number above 0, not 'k'"),
    ],
)
def test_a_wrong_field_gives_one_line(tiny_checkpoint, field, value, message):
    with pytest.raises(ValueError, match=message) as error:
        AlignedLlavaConfig(**{field: value})
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=message):
        load(tiny_checkpoint("norm"), **{field: value})
