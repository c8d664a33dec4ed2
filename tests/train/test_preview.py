"""`python -m train.preview`: rows as the model sees them, and the summary."""

import io
import json

import pytest
from rich.console import Console

from train.preview import SUPERVISED, run_preview


@pytest.fixture
def preview(stage_arguments, tmp_path):
    """`preview(stage, *options, **settings)` -> what is printed, to a terminal of 200 columns or to a file."""

    def run(stage, *options, terminal=False, **settings):
        console = Console(
            file=io.StringIO(), width=200, force_terminal=terminal, color_system="standard" if terminal else None
        )
        run_preview([*stage_arguments(stage, "norm-gwc", tmp_path, **settings), *options], console)
        return console.file.getvalue()

    return run


def test_rows_are_shown_as_the_model_sees_them(preview, tiny_checkpoint, tiny_data):
    text = preview(2, "--rows", "2", "--first", "4", model_name_or_path=tiny_checkpoint("norm-gwc"))
    images = tiny_data / "images"
    assert f"image {images}/4.png: 24 x 28" in text and f"image {images}/5.png: 25 x 28" in text
    assert (
        "<|im_start|>user\n<image x 4>\nnumber 0?<|im_end|>\n<|im_start|>assistant\n[[xxxxx<|im_end|>]]\n"
        "<|im_start|>user\nnumber 1?<|im_end|>\n<|im_start|>assistant\n[[xxxxx<|im_end|>]]\n"
    ) in text
    assert "row 4 of" in text and "row 6 of" not in text


def test_supervised_tokens_are_coloured(preview):
    text = preview(1, "--rows", "1", terminal=True)
    assert SUPERVISED == "bold green" and "\x1b[1;32mshade 0<|im_end|>" in text


def test_the_summary_counts(preview, tiny_data, tmp_path):
    rows = json.loads((tiny_data / "stage1.json").read_text())
    rows[0]["image"] = "gone.png"
    rows[1]["conversations"] = []
    rows[3]["conversations"].pop()
    del rows[2]["image"]
    rows[2]["conversations"][0]["value"] = "Describe."
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    text = preview(1, "--rows", "0", data_path=tmp_path / "rows.json")
    lines = [" ".join(line.split("│")[1:3]).split() for line in text.splitlines() if "│" in line]
    table = {" ".join(line) for line in lines}
    assert {
        "rows opened 24",
        "rows to train on 21 (of which 1 text-only)",
        "rows left out 1 filtered (1 x turns do not alternate human, gpt, ..., ending with gpt), "
        "2 damaged (1 x there is no image file, 1 x the conversation is empty)",
        "images 20",
    } <= table
    supervised = sum(len(f"shade {i}") + 1 for i in range(2, 24) if i != 3)  # one token per byte, and the end
    total = supervised + 20 * 4
    assert f"tokens {total}, of which {supervised} supervised ({supervised / total:.1%})" in table
