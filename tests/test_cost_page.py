"""The arithmetic of docs/train.md, done again from the shapes of the backbones and from the recipes."""

from dataclasses import replace

import pytest

from eval.options import read_recipe
from tests import REPOSITORY
from tests.paper_models import DECODERS, flops, paper_model
from train.cost import Batch, count, memory


TOKENS, PEAK = 729, 989e12
GPUS = 8
ROWS = {"stage1": 558_000, "stage2": 779_000, "stage2_lora": 779_000}


def row(backbone: str, stage: str) -> list[str]:
    model, settings = paper_model(backbone, stage), read_recipe(backbone, stage)
    checkpointing, rows = settings["gradient_checkpointing"], settings["per_device_train_batch_size"]
    batch = Batch(rows=rows, length=TOKENS, images=rows)
    trained = count(model)
    one = memory(model, batch, checkpointing=checkpointing)
    alone = one.weights + one.gradients + one.optimizer
    sharded = memory(model, batch, engine="fsdp2", processes=GPUS, checkpointing=checkpointing).total
    hours = ROWS[stage] * flops(model, replace(batch, rows=1, images=1), checkpointing) / PEAK / 3600
    return [f"{trained / 1e6:,.0f} M", f"{alone / 1e9:.1f} GB", f"{sharded / 1e9:.1f} GB", f"{hours:.1f}"]


@pytest.mark.parametrize("backbone", DECODERS)
@pytest.mark.parametrize("stage", ROWS)
def test_the_table_is_its_arithmetic(backbone, stage):
    text = (REPOSITORY / "docs/train.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith(f"| `{backbone}/{stage}` |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert cells == row(backbone, stage)
