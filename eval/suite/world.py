"""What the recipes of a small backbone need and no Hub has: its world's data and its decoder, as `world.yaml` says."""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.engine.child import logged
from eval.run.recipes import read_recipe


ANSWER_TOKENS = 16  # longer than any right answer in these worlds


def make_world(backbone: str, data: Path, logs: Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Write the world's data to `data` and the decoder to where stage 1 expects it, unless they are there.

    Raises:
        UserError: one of the programs failed; its output is in `logs`.
    """
    made = read_recipe(backbone, "world")
    if made:
        say(f"2 data: {data}")
        _build(data, ["tinyworld.build", str(data), "--world", made["world"]], logs / "data.log")
    if "decoder" in made:
        decoder = Path(read_recipe(backbone, "stage1")["language_model"])
        say(f"2 language model: {decoder}")
        _build(decoder, [made["decoder"], str(decoder)], logs / "decoder.log")


def _build(out: Path, command: Sequence[str], log: Path) -> None:
    """Run `python -m COMMAND`, which writes the folder `out`, unless that exists."""
    if not out.exists():
        deque(logged([sys.executable, "-m", *command], log), maxlen=0)
