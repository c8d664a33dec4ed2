"""`encoders`, `embeddings`, `vocabulary` and `parameters`: Tables 1, 3 and 5-8 on tiny models."""

import math

import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    BitImageProcessor,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    SiglipVisionModel,
)

from modeling_aligned_llava.diagnostics.embeddings import largest_rows
from modeling_aligned_llava.diagnostics.encoders import encoder_norms
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion
from modeling_aligned_llava.diagnostics.instruments.models import load_encoder, load_language
from modeling_aligned_llava.diagnostics.instruments.tables import paper_row
from modeling_aligned_llava.diagnostics.vocabulary import (
    check_vocabulary,
    looks_untrained,
    show_vocabulary,
    vocabulary,
)
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.files import read_json
from tests.modeling_aligned_llava.loading.test_checkpoint import rewrite
from tests.modeling_aligned_llava.tiny_families import random_pair, tiny, write_checkpoint
from tests.one_line import one_line


def test_encoder_norms_are_those_of_the_last_and_the_second_to_last_layer(
    tiny_backbones, tiny_checkpoint, tiny_images, tmp_path, run
):
    models = [tiny_backbones.vision, tiny_checkpoint("baseline")]
    run("encoders", *models, "--images", tiny_images[0], "--out", tmp_path)
    alone, inside = read_json(tmp_path / "encoders.json").values()
    process = AutoImageProcessor.from_pretrained(tiny_backbones.vision)
    pixels = process(images=Image.open(tiny_images[0]), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        states = SiglipVisionModel.from_pretrained(tiny_backbones.vision)(pixels, output_hidden_states=True)
    assert alone["last, patches"] == alone["last hidden state"]  # SigLIP has no class token
    expected = states.last_hidden_state.norm(dim=-1).mean().item()
    assert alone["last hidden state"]["mean"] == pytest.approx(expected, rel=1e-5)
    expected = states.hidden_states[-2].norm(dim=-1).mean().item()
    assert alone["layer -2, patches"]["mean"] == pytest.approx(expected, rel=1e-5)
    assert inside["dim"] == 32 and "read by the connector" not in alone
    with pytest.raises(UserError, match="text-only"):
        run("encoders", tiny_backbones.qwen2, "--images", tiny_images[0])


@pytest.mark.parametrize(
    "name", ["llava_next", "llava_onevision", "smolvlm", "qwen2_vl", "pixtral", "gemma3", "ovis2"]
)
def test_any_family_has_norms_of_its_encoder(name, tmp_path, tiny_images, run):
    """What the connector reads is what its profile has."""
    folder = write_checkpoint(name, tmp_path / name)
    run("encoders", folder, "--images", tiny_images[0], "--out", tmp_path)
    run("profile", folder, "--images", tiny_images[0], "--json", tmp_path / "profile.json")
    (outputs,) = read_json(tmp_path / "encoders.json").values()
    norms = read_json(tmp_path / "profile.json")["norms"]
    same = {"last hidden state": "vision encoder output", "read by the connector": "connector input"}
    for here, there in same.items():
        assert outputs[here]["mean"] == pytest.approx(norms[there]["mean"]), here
        assert outputs[here]["count"] == norms[there]["count"]


def test_an_encoder_may_lack_the_pooling_head_that_is_not_measured(tiny_backbones, tmp_path):
    def drop_head(state):
        return {name: value for name, value in state.items() if ".head." not in name and not name.startswith("head.")}

    encoder, _ = load_encoder(str(rewrite(tiny_backbones.vision, tmp_path / "headless", drop_head)))
    assert encoder.main_input_name == "pixel_values"


def test_class_and_register_tokens_are_no_patches():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
    encoder = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes, num_register_tokens=4)).eval()
    images = BitImageProcessor(size={"height": 28, "width": 28}, do_center_crop=False)
    picture = ImageQuestion("a", lambda: Image.effect_noise((28, 28), 60).convert("RGB"))
    outputs = encoder_norms(encoder, images, [picture])
    assert outputs["last hidden state"]["count"] == 21 and outputs["layer -2, patches"]["count"] == 16


def test_a_norm_that_is_not_finite_has_no_statistics(tmp_path, run):
    model, processor = random_pair("aligned_llava")
    model.model.multi_modal_projector.norm.weight.data[3] = torch.nan
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    with one_line("gain or bias are not finite in float32: its weights are damaged"):
        run("parameters", tmp_path)


def test_embeddings_of_base_and_vl(tiny_backbones, tiny_checkpoint, tmp_path, run):
    vl = tiny_checkpoint("baseline")
    run("embeddings", vl, tiny_backbones.qwen2, "--out", tmp_path)
    tables = read_json(tmp_path / "embeddings.json")
    weight = AutoModelForCausalLM.from_pretrained(tiny_backbones.qwen2).get_input_embeddings().weight
    norms = weight.double().norm(dim=-1)
    base = tables[str(tiny_backbones.qwen2)]["module output"]
    assert base["mean"] == pytest.approx(norms[norms > 0].mean().item(), rel=1e-6)
    assert base["zero_rows"] == int((norms == 0).sum()) == 1  # the padding row
    top = largest_rows(norms.float(), load_language(str(tiny_backbones.qwen2))[1], 3)
    assert [row["id"] for row in top] == norms.topk(3).indices.tolist()


def test_tokens_of_a_visual_vocabulary_are_mixtures_of_its_rows(capsys):
    model, inputs = tiny("ovis2")
    parts = model_parts(model)
    statistics = vocabulary(model, parts, [inputs])
    assert statistics["tokens at layer 0"]["count"] == 4
    assert 1 <= statistics["N_eff"]["mean"] <= 64
    predicted = statistics["rows"]["mean"] / math.sqrt(statistics["N_eff"]["mean"])
    assert statistics["tokens at layer 0"]["mean"] == pytest.approx(predicted, rel=0.5)
    show_vocabulary("tiny", statistics | {"looks_untrained": True})
    assert "looks untrained" in capsys.readouterr().out
    model, _ = tiny("llava")
    with pytest.raises(UserError, match="no visual vocabulary"):
        check_vocabulary(model_parts(model), "tiny")


def test_a_table_of_random_rows_looks_untrained():
    weight = torch.randn(1024, 4096, generator=torch.Generator().manual_seed(0))
    assert looks_untrained(weight)
    assert not looks_untrained(weight * torch.linspace(0.9, 1.1, 1024)[:, None])


def test_an_untrained_norm_has_no_drift(tiny_checkpoint, tmp_path, run):
    run("parameters", tiny_checkpoint("norm-gwc"), "--out", tmp_path)
    (norm,) = read_json(tmp_path / "parameters.json").values()
    assert norm["relative_drift"] == pytest.approx(0, abs=1e-6)
    assert norm["gain"]["mean_abs"] == pytest.approx(norm["gain_start"])
    assert norm["token_norm"] == pytest.approx(norm["gain_start"] * math.sqrt(32))
    with pytest.raises(UserError, match="no alignment norm"):
        run("parameters", tiny_checkpoint("baseline"))


def test_the_papers_row_is_found_by_name():
    assert paper_row("embeddings", "Qwen/Qwen2.5-VL-7B-Instruct")["mean"] == 0.8965
    assert paper_row("embeddings", "Qwen/Qwen2.5-7B-Instruct")["mean"] == 0.8031
    assert paper_row("projectors", "tiny") == {}
