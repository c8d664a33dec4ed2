"""`profile` on checkpoints and images: numbers, intervals, JSON, and one clear line for every error."""

import json
import shutil

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.diagnostics.instruments.image_questions import draw, in_folder
from modeling_aligned_llava.diagnostics.instruments.models import load
from modeling_aligned_llava.diagnostics.norm_profile.profile_file import settled_layer
from modeling_aligned_llava.diagnostics.profile import InertTokens, profile
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.checkpoint import load_part
from modeling_aligned_llava.loading.files import read_json
from tests.one_line import one_line


@pytest.fixture
def folder(tmp_path):
    for i in range(3):
        Image.effect_noise((50 + 10 * i, 40), 80).convert("RGB").save(tmp_path / f"{i}.png")
    return tmp_path


def test_at_step_0_the_norm_gives_visual_tokens_the_norm_of_text(tiny_checkpoint, folder, tmp_path):
    out = tmp_path / "profile.json"
    written = profile(str(tiny_checkpoint("norm")), in_folder(folder, 64), out)
    assert read_json(out) == written
    assert (written["schema"], written["images"]) == (2, 3)
    assert written["norms"]["visual tokens at layer 0"]["count"] == 3 * 4  # 28 pixels, patches of 14
    # the text norm is measured before the rows of <image> and of the padding join the vocabulary
    text_norm = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("norm")).config.text_norm
    assert written["norms"]["visual tokens at layer 0"]["mean"] == pytest.approx(text_norm, rel=0.01)
    assert written["norms"]["connector output"] == written["norms"]["visual tokens at layer 0"]


def test_hidden_files_are_no_images(folder):
    """A Mac's `._0.png` beside each image of an archive, and the copies that a notebook keeps."""
    (folder / ".ipynb_checkpoints").mkdir()
    shutil.copy(folder / "0.png", folder / ".ipynb_checkpoints" / "0-checkpoint.png")
    (folder / "._0.png").write_bytes(b"\0\5\x16\7Mac OS X")
    assert [image.id for image in in_folder(folder, 64)] == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize(
    ("norms", "layer"),
    [
        ([2.9, 43, 88, 197, 201, 204], 3),  # SmolLM2-135M
        ([0.9, 67, 92, 108, 129, 153], 2),  # tinyworld
        ([1.0, 1.2, 1.1], 0),
        ([1.0, 1.1, 2.0], 2),
        ([1.0], 0),
    ],
)
def test_text_has_settled_where_no_later_layer_changes_it_by_a_quarter(norms, layer):
    assert settled_layer(norms) == layer


def test_a_layer_has_means_intervals_and_an_attribution_that_adds_up(tiny_checkpoint, folder):
    measured = profile(str(tiny_checkpoint("baseline")), in_folder(folder, 64))
    visual = measured["layers"]["visual"]
    assert [len(visual[name]["mean"]) for name in ("norm", "cosine")] == [3, 2]
    for mean, (low, high) in zip(visual["norm"]["mean"], visual["norm"]["ci95"], strict=True):
        assert low <= mean <= high and low < high
    assert "special" in measured["layers"]  # <|im_start|> is not content
    stream, text = measured["stream"], measured["layers"]["text"]["norm"]["mean"]
    assert stream["ratio"] == pytest.approx([visual["norm"]["mean"][i] / text[i] for i in (0, 1)], rel=1e-6)
    assert stream["entry_ratio"] == pytest.approx([visual["norm"]["mean"][0] / text[i] for i in (0, 1)], rel=1e-6)
    terms = measured["attribution"]
    for layer in range(2):
        parts = sum(terms[name]["value"][layer] for name in ("norm", "update", "angle", "parallel"))
        assert abs(parts - terms["total"]["value"][layer]) < 1e-9
    # the last state of `output_hidden_states` has gone through the final norm: sqrt(32) in a fresh model
    convention = measured["output_hidden_states_convention"]["visual"]["norm"]
    assert convention == pytest.approx(32**0.5, rel=0.01)
    assert visual["norm"]["mean"][-1] != pytest.approx(convention, rel=0.05)


def test_visual_information_is_in_the_file_and_in_a_table(tiny_checkpoint, tmp_path, run, capsys):
    out = tmp_path / "profile.json"
    run("profile", tiny_checkpoint("norm"), "--limit", 30, "--json", out)
    kept, shown = read_json(out)["visual_information"], capsys.readouterr().out
    assert (kept["tokens"], kept["images"], len(kept["mean"]), len(kept["ci95"])) == (30 * 4, 30, 2, 2)
    assert kept["reference"] == "features that the connector reads" and kept["shuffled"][0] < kept["mean"][0] < 1
    assert f"{kept['mean'][1]:.3f}" in shown and "shuffled images" in shown
    run("profile", tiny_checkpoint("norm"), "--limit", 2)
    assert "Visual information by layer: - (8 visual tokens; at least 100" in capsys.readouterr().out


def test_a_corrupt_image_is_named_and_the_rest_is_kept(tiny_checkpoint, folder, run, capsys):
    (folder / "1.png").write_bytes(b"not an image")
    out = folder / "profile.json"
    with pytest.raises(UserError, match=r"1 images could not be read.*1\.png.*the rest is in"):
        run("profile", tiny_checkpoint("norm"), "--images", folder, "--json", out)
    kept = read_json(out)
    assert kept["image_ids"] == ["0.png", "2.png"]
    assert kept["unreadable"][0]["id"] == "1.png"
    assert "visual tokens at layer 0" in capsys.readouterr().out


def test_without_images_it_measures_drawn_ones_which_are_always_the_same(tiny_checkpoint, run, capsys):
    run("profile", tiny_checkpoint("norm"), "--json", "-", "--limit", 2)
    out, err = capsys.readouterr()
    assert json.loads(out)["image_ids"] == ["drawn 0", "drawn 1"]  # and nothing else
    assert err.index("Verdict: ") < err.index("Measured on drawn images") < err.index("L2 norms")
    assert draw(0).tobytes() == draw(0).tobytes() != draw(1).tobytes()


def test_a_program_can_fail_if_tokens_are_inert(tiny_checkpoint, folder, run, capsys):
    words = ("profile", tiny_checkpoint("baseline"), "--images", folder, "--fail-if-inert")
    with one_line("visual tokens are inert in 100% of layers, more than 50%", InertTokens) as error:
        run(*words)
    assert error.value.status == 3 and "Verdict: the visual tokens are inert" in capsys.readouterr().out
    run("profile", tiny_checkpoint("norm"), *words[2:], 0.5)
    with one_line("--fail-if-inert 1: a share of the layers, from 0 to below 1, is needed"):
        run(*words, 1)


def test_it_is_measured_in_the_precision_that_is_asked_for(tiny_checkpoint, folder, run):
    out = folder / "profile.json"
    run("profile", tiny_checkpoint("norm"), "--images", folder, "--json", out, "--dtype", "bfloat16")
    assert read_json(out)["dtype"] == "bfloat16"


def test_models_that_are_compared_have_one_precision(tiny_checkpoint, tmp_path):
    """Hub checkpoints are bfloat16, trained ones float32; both are measured in the precision of the device."""
    half = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("baseline"), dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    load_part(AutoProcessor, tiny_checkpoint("baseline")).save_pretrained(tmp_path / "half")
    for path in (tmp_path / "half", tiny_checkpoint("norm")):
        assert load(str(path))[0].dtype == torch.float32


def test_every_error_is_one_line(tiny_checkpoint, tiny_backbones, tmp_path, run):
    bad, empty, bare, good = (tmp_path / name for name in ("bad", "empty", "bare", "good.png"))
    bad.mkdir(), empty.mkdir()
    (bad / "broken.png").write_bytes(b"not an image")
    Image.new("RGB", (8, 8)).save(good)
    whole = tiny_checkpoint("norm")
    shutil.copytree(whole, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    for model, images, line in (
        (whole, tmp_path / "absent", "there is no file or folder"),
        (whole, empty, "no image in"),
        (whole, bad, "broken.png cannot be read"),
        (tmp_path / "no-model", good, "cannot load .*no-model"),
        (tiny_backbones.qwen2, good, "is a text-only model"),
        (bare, good, "cannot load .*bare"),
    ):
        with one_line(line):
            run("profile", model, "--images", images)
