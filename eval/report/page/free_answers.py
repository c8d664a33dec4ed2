"""What each model says to questions that ask for neither an option nor a single word, right or wrong as it comes."""

from dataclasses import dataclass
from typing import Any

from eval.data.benchmarks import BY_KEY
from eval.report.page.thumbnails import thumbnail
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.inference.generator import Generator


ASKED = 10
LONGEST = 48  # tokens of an answer


@dataclass(frozen=True)
class FreeAnswers:
    """An image, a question about it, and the answers by model."""

    image: str
    question: str
    answers: dict[str, str]


def free_questions(sample: list[ImageQuestion]) -> list[tuple[ImageQuestion, str]]:
    """The first images with an open question, and that question without instructions on the form of the answer."""
    found: dict[str, tuple[ImageQuestion, str]] = {}
    for asked in sample:
        benchmark = BY_KEY.get(asked.id.split("/")[0])
        if benchmark is None:  # a file of a folder: all have the same question
            found[asked.id] = (asked, asked.question)
        elif (kind := benchmark.image_sample) is not None and not kind.lists_options:
            question = asked.question.removesuffix(kind.suffix)
            found.setdefault(question, (asked, question))
    return list(found.values())[:ASKED]


def answer_freely(model: Any, processor: Any, sample: list[ImageQuestion]) -> list[dict[str, str]]:
    """The model's answers to `free_questions`, each with the image's id; one at a time, so that nothing is padded."""
    generator = Generator(model, processor)
    found = []
    for asked, question in free_questions(sample):
        (answer,) = generator.answer([generator.render(question, images=1)], [[asked.open()]], LONGEST)
        found.append({"id": asked.id, "answer": answer})
    return found


def free_answers(sample: list[ImageQuestion], measured: dict[str, dict[str, Any]]) -> list[FreeAnswers]:
    """The questions with the answers of all models.

    Raises:
        UserError: an image cannot be read.
    """
    said = {
        name: {each["id"]: each["answer"] for each in found["answers"]}
        for name, found in measured.items()
        if "answers" in found
    }
    if not said:
        return []
    return [
        FreeAnswers(
            thumbnail(asked.open()), question, {name: own[asked.id] for name, own in said.items() if asked.id in own}
        )
        for asked, question in free_questions(sample)
    ]
