"""The demo with a model whose name, answers and questions are full of tags; the argument is its folder."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from eval.demo.app import build, serve
from eval.demo.models import Answer, DemoModel, load_models
from modeling_aligned_llava.diagnostics.images import ImageQuestion, in_folder
from tests.faults.hostile_words import ANSWER, NAME


class Hostile(DemoModel):
    """Says ANSWER, whatever it is asked."""

    def stream(self, asked: ImageQuestion, max_new_tokens: int) -> Iterator[Answer]:
        yield from (Answer(asked, ANSWER[:end]) for end in range(1, len(ANSWER)))
        yield Answer(asked, ANSWER, (1, 2, 3))

    def words(self, answer: Answer) -> list[tuple[str, int]]:
        return [(word, 0) for word in re.findall(r"\S+", answer.text)]


def main() -> None:
    folder = Path(sys.argv[1])
    (model,) = load_models({"tiny": str(folder / "model")}, "cpu")
    hostile = Hostile(NAME, model.generator, model.parts, model.embedding)
    examples = [replace(each, question=ANSWER) for each in in_folder(folder / NAME, 8)]
    serve(build([hostile], examples, 8))


if __name__ == "__main__":
    main()
