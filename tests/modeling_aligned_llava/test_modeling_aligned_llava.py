"""The model: methods, initialisation, saving and loading, and equality of the baseline with transformers' LLaVA."""

import pytest
import torch
import transformers as hf
from PIL import Image

from modeling_aligned_llava import (
    AlignedLlavaConfig,
    AlignedLlavaForConditionalGeneration,
    mean_embedding_norm,
    method_fields,
    method_names,
)
from modeling_aligned_llava.norm_alignment import target_gain
from tests.clone import changed_copy
from tests.modeling_aligned_llava.loaded import load
from tests.one_line import one_line


METHODS = method_names()


@pytest.fixture(scope="module")
def inputs(tiny_checkpoint):
    processor = hf.AutoProcessor.from_pretrained(tiny_checkpoint("baseline"))
    image = Image.new("RGB", (40, 30), (200, 30, 90))
    text = "<|im_start|>user\n<image>\nwhat?<|im_end|>\n<|im_start|>assistant\n"
    return processor(images=[image], text=[text], return_tensors="pt")


def norm_of(model):
    return getattr(model.base_model.multi_modal_projector, "norm", None)


@pytest.mark.parametrize("decoder", ["qwen2", "llama"])
def test_baseline_is_bit_equal_to_transformers_llava(tiny_checkpoint, inputs, decoder):
    model = load(tiny_checkpoint("baseline", decoder))
    fields = {k: v for k, v in model.config.to_dict().items() if k not in ("model_type", "auto_map", "architectures")}
    theirs = hf.LlavaForConditionalGeneration(hf.LlavaConfig(**fields)).eval()
    theirs.load_state_dict(model.state_dict())
    assert norm_of(model) is None
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, theirs(**inputs).logits)


def test_methods_set_the_norm_they_are_named_for(tiny_checkpoint):
    models = {method: load(tiny_checkpoint(method)) for method in METHODS}
    start = target_gain(models["norm"].config.text_norm, 32)
    stream = target_gain(models["norm-stream"].config.stream_norm, 32)
    expected = {  # elements of the gain, scale, compensation, bias, centring
        "norm": (start, 1.0, 0.0, True, True),
        "norm-gwc": (start, 1.0, 1.0, True, True),
        "norm-default-init": (1.0, 1.0, 0.0, True, True),
        "norm-relative": (1.0, start, 0.0, True, True),
        "norm-stream": (stream, 1.0, 0.0, True, True),
        "norm-rms": (start, 1.0, 0.0, False, False),
    }
    assert set(METHODS) == {*expected, "baseline"}
    for method, (gain, scale, exponent, bias, centred) in expected.items():
        norm = norm_of(models[method])
        assert (norm.scale, norm.compensation_exponent, norm.centred) == (scale, exponent, centred), method
        assert (norm.bias is not None, norm.gain_init) == (bias, gain), method
        assert torch.equal(norm.weight, torch.full((32,), gain)), method
        assert norm.bias is None or not norm.bias.any(), method


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("baseline", "norm-default-init")])
def test_visual_tokens_start_at_the_target(tiny_checkpoint, tiny_images, method):
    model, plain = load(tiny_checkpoint(method)), load(tiny_checkpoint("baseline"))
    processor = hf.AutoProcessor.from_pretrained(tiny_checkpoint(method))
    pixels = processor.image_processor([Image.open(file) for file in tiny_images], return_tensors="pt")["pixel_values"]
    norm = torch.cat(model.get_image_features(pixels).pooler_output).norm(dim=-1).mean().item()
    target = model.config.stream_norm if method == "norm-stream" else model.config.text_norm
    assert norm == pytest.approx(target, rel=0.01)
    projector, other = model.model.multi_modal_projector, plain.model.multi_modal_projector
    assert torch.equal(projector.linear_1.weight, other.linear_1.weight)
    assert torch.equal(projector.linear_2.weight, other.linear_2.weight)


@pytest.mark.parametrize("method", METHODS)
def test_a_baseline_checkpoint_switches_to_any_method_at_loading(tiny_checkpoint, inputs, method):
    stream_norm = load(tiny_checkpoint("norm-stream")).config.stream_norm
    switched = load(tiny_checkpoint("baseline"), **method_fields(method), stream_norm=stream_norm)
    assembled = load(tiny_checkpoint(method))
    assert switched.config.method == method
    assert all(torch.equal(a, b) for a, b in zip(switched.parameters(), assembled.parameters(), strict=True))
    with torch.no_grad():
        assert torch.equal(switched(**inputs).logits, assembled(**inputs).logits)


def test_switching_never_gives_trained_tensors_another_meaning(tiny_checkpoint):
    norm = tiny_checkpoint("norm")
    assert load(norm, **method_fields("norm-gwc")).config.method == "norm-gwc"  # the same tensors, other gradients
    assert load(norm, compensation_exponent=0.5).config.method is None
    for source, fields, message in (
        ("norm", method_fields("norm-relative"), "norm_parametrization cannot change from 'absolute'"),
        ("norm", method_fields("norm-rms"), "projector_norm cannot change from 'layernorm' to 'rmsnorm'"),
        ("norm", {"target_scale": 5.0}, "target_scale cannot change from 1.0 to 5.0"),
        ("baseline", method_fields("norm-stream"), r"needs stream_norm, which .*\.assembly measures on text"),
        ("norm-stream", {"stream_norm": 2.0}, "stream_norm cannot change from"),
    ):
        with one_line(message, ValueError):
            load(tiny_checkpoint(source), **fields)


def test_a_model_built_from_a_config_measures_its_own_embeddings(tiny_checkpoint):
    def built(method, **fields):
        config = AlignedLlavaConfig.from_pretrained(tiny_checkpoint(method)).to_dict()
        return AlignedLlavaForConditionalGeneration(AlignedLlavaConfig(**{**config, "text_norm": None, **fields}))

    model, relative = built("norm-gwc"), built("norm-relative", target_scale=2.0)
    measured = mean_embedding_norm(model.get_input_embeddings())
    assert model.config.text_norm == measured
    assert torch.equal(norm_of(model).weight, torch.full((32,), target_gain(measured, 32)))
    assert norm_of(relative).scale == target_gain(relative.config.text_norm, 32, 2.0)


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


@pytest.mark.parametrize("method", ["norm-gwc", "norm-relative"])
def test_a_norm_without_a_recorded_text_norm_is_refused(method, tiny_checkpoint, tmp_path):
    folder = changed_copy(tiny_checkpoint(method), tmp_path / "changed", text_norm=None)
    with pytest.raises(ValueError, match="no text_norm"):
        load(folder)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text_norm", -1.0, "text_norm must be a number above 0 or null, not -1.0"),
        ("projector_norm", "batchnorm", "projector_norm must be one of none, layernorm, rmsnorm, not 'batchnorm'"),
        ("norm_init", 3, "norm_init must be one of text, ones, not 3"),
        ("target_scale", -1, "target_scale must be a number above 0, not -1"),
        ("norm_eps", 0, "norm_eps must be a number above 0, not 0"),
        ("text_norm", float("nan"), "text_norm must be a number above 0 or null, not nan"),
        ("compensation_exponent", 2, "compensation_exponent must be from 0 to 1, not 2"),
        ("target_scale", "k", "target_scale must be a number above 0, not 'k'"),
        ("stream_layer", 0, "stream_layer must be a whole number from 1, not 0"),
        ("stream_layer", 1.0, "stream_layer must be a whole number from 1, not 1.0"),
        ("stream_norm", 0, "stream_norm must be a number above 0 or null, not 0"),
        ("norm_target", "embedding", "norm_target must be one of text, stream, not 'embedding'"),
    ],
)
def test_a_wrong_field_gives_one_line(tiny_checkpoint, field, value, message):
    with one_line(message, ValueError):
        AlignedLlavaConfig(**{field: value})
    if hasattr(AlignedLlavaConfig, field):  # others are no argument of `from_pretrained` at all
        with pytest.raises(ValueError, match=message):
            load(tiny_checkpoint("norm"), **{field: value})
