import json
import subprocess
import sys

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from eval.diagnostics.profile import Norms, profile
from modeling_aligned_llava.errors import UserError


@pytest.fixture
def pictures(tmp_path):
    for i in range(3):
        Image.effect_noise((50 + 10 * i, 40), 80).convert("RGB").save(tmp_path / f"{i}.png")
    return tmp_path


def test_at_step_0_the_norm_gives_visual_tokens_the_norm_of_text(tiny_checkpoint, pictures):
    found = profile(str(tiny_checkpoint("norm")), pictures, limit=64)
    assert found.images == 3
    assert found.norms["visual tokens at layer 0"].count == 3 * 4  # 28 pixels, patches of 14
    # the text norm is measured before the rows of <image> and of the padding join the vocabulary
    text_norm = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("norm")).config.text_norm
    assert found.norms["visual tokens at layer 0"].mean == pytest.approx(text_norm, rel=0.01)
    assert found.norms["connector output"] == found.norms["visual tokens at layer 0"]


def test_statistics_are_those_of_the_norms():
    norms = Norms.of(torch.tensor([1.0, 2.0, 6.0]))
    assert (norms.mean, norms.median, norms.count) == (3.0, 2.0, 3)
    assert norms.std == pytest.approx((14 / 3) ** 0.5)


def test_profile_is_written_as_json(tiny_checkpoint, pictures, tmp_path):
    out = tmp_path / "profile.json"
    command = [sys.executable, "-m", "eval.diagnostics", "profile", str(tiny_checkpoint("baseline"))]
    subprocess.run([*command, "--images", str(pictures), "--json", str(out)], check=True, capture_output=True)  # noqa: S603
    assert json.loads(out.read_text(encoding="utf-8"))["images"] == 3


def test_what_cannot_be_read_is_named(tiny_checkpoint, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    for model, images, named in (
        (str(tiny_checkpoint("norm")), tmp_path / "absent", "absent"),
        (str(tiny_checkpoint("norm")), tmp_path, "broken.png"),
        (str(tmp_path / "no-model"), tmp_path / "broken.png", "no-model"),
    ):
        with pytest.raises(UserError, match=named):
            profile(model, images, limit=64)
