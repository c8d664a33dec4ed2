"""`python -m research.pictures.lookups CHECKPOINT`: which answers get lost between the image and the decoder?

Every question about a new scene is asked four times: with the image or with its caption, for a word or for the letter
of an option. A model that answers from the caption but not from the image has the language and lacks the vision; one
that has the word and not the letter lacks the format. The rows tell ways of reading apart: `name` goes from a place to
what is there, `where` and `exists` from a name to its place.
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from PIL.Image import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.inference.generator import Generator, load_generator
from research.pictures import layouts
from research.pictures.language import OPEN_FAMILIES, caption
from research.pictures.questions import ask
from research.pictures.scenes import render
from tinyworld.language import lettered_turn, open_turn
from tinyworld.layouts import Items


ANSWER_TOKENS = 8
SOURCES, FORMS = ("image", "caption"), ("word", "letter")


class Cell(NamedTuple):
    """A cell of the table: the family of a question, what shows the scene, and what is asked for."""

    family: str
    source: str
    form: str


@dataclass(frozen=True)
class Asked:
    """One question; `image` is None if the prompt begins with the caption."""

    cell: Cell
    prompt: str
    image: Image | None
    answer: str


def _questions(items: Items, image: Image, rng: random.Random) -> Iterator[Asked]:
    """One question of every family that the scene has, from both sources and in both forms."""
    for question in {question.family: question for question in ask(items, rng)}.values():
        forms = {"word": open_turn(question)}
        if question.family not in OPEN_FAMILIES:
            forms["letter"] = lettered_turn(question, "lines", rng)
        for form, (prompt, answer) in forms.items():
            yield Asked(Cell(question.family, "image", form), prompt, image, answer)
            yield Asked(Cell(question.family, "caption", form), f"{caption(items)}\n{prompt}", None, answer)


def draw(scenes: int, seed: int = 0) -> list[Asked]:
    """Questions about `scenes` scenes of two to six things, drawn as those of the benchmarks are."""
    rng = random.Random(f"lookups {seed}")
    asked: list[Asked] = []
    for _ in range(scenes):
        items = layouts.things(rng)
        asked += _questions(items, render(items, rng, "test").image, rng)
    return asked


def measure(generator: Generator, asked: Iterable[Asked], batch_size: int = 32) -> dict[Cell, tuple[int, int]]:
    """Right answers and questions of each cell; an answer counts without its case and final full stop."""
    right, total = Counter[Cell](), Counter[Cell]()
    work = sorted(asked, key=lambda each: (each.image is None, len(each.prompt)))
    batches = [work[start : start + batch_size] for start in range(0, len(work), batch_size)]
    for batch in track(batches, description="questions"):
        prompts = [generator.render(each.prompt, int(each.image is not None)) for each in batch]
        images = [[] if each.image is None else [each.image] for each in batch]
        for each, answer in zip(batch, generator.answer(prompts, images, ANSWER_TOKENS), strict=True):
            total[each.cell] += 1
            right[each.cell] += answer.strip().removesuffix(".").lower() == each.answer.lower()
    return {cell: (right[cell], total[cell]) for cell in sorted(total)}


def table_of(found: dict[Cell, tuple[int, int]]) -> Table:
    table = Table(title="right answers, in percent, and questions")
    table.add_column("family")
    columns = [(source, form) for source in SOURCES for form in FORMS]
    for source, form in columns:
        table.add_column(f"{source}, {form}", justify="right")
    for family in dict.fromkeys(cell.family for cell in found):
        counts = [found.get(Cell(family, *column)) for column in columns]
        table.add_row(family, *(f"{100 * c[0] / c[1]:.0f} ({c[1]})" if c else "" for c in counts))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.pictures.lookups", description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--scenes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other scenes")
    arguments = parser.parse_args()
    generator = load_generator(str(arguments.checkpoint), dtype="float32")
    Console().print(table_of(measure(generator, draw(arguments.scenes, arguments.seed))))


if __name__ == "__main__":
    run_main(main)
