"""The arithmetic of docs/train.md, done again from the shapes of the backbones and from the recipes."""

import pytest

from tests import REPOSITORY
from tests.paper_models import DECODERS, paper_model
from train.cost import Batch, count, flops, memory
from train.step_plan import FULL, fitting, one_micro_batch


TOKENS, PEAK = 729, 989e12
GPUS = 8
ROWS = {"stage1": 558_000, "stage2": 779_000, "stage2_lora": 779_000}


def row(backbone: str, stage: str) -> list[str]:
    model = paper_model(backbone, stage)
    alone = memory(model, Batch(0, 0, 0))
    share = {"engine": "fsdp2", "processes": GPUS, "bf16": True}
    tokens, again = fitting(model, TOKENS, FULL, None, None, 80e9, **share)
    sharded = memory(model, one_micro_batch(model, tokens, TOKENS), checkpointing=again, **share).total
    hours = ROWS[stage] * flops(model, Batch(rows=1, length=TOKENS, images=1), again) / PEAK / 3600
    stored = (alone.weights + alone.gradients + alone.optimizer) / 1e9
    return [f"{count(model) / 1e6:,.0f} M", f"{stored:.1f} GB", f"{sharded / 1e9:.1f} GB", f"{hours:.1f}"]


@pytest.mark.parametrize("backbone", DECODERS)
@pytest.mark.parametrize("stage", ROWS)
def test_the_table_is_its_arithmetic(backbone, stage):
    text = (REPOSITORY / "docs/train.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith(f"| `{backbone}/{stage}` |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert cells == row(backbone, stage)
