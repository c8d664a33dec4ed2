"""The benchmarks: the nine columns of the paper's Table 4, and extra ones. One entry holds all that the code knows.

How to add one: docs/contributing.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from eval.data import sample_lines
from eval.data.sample_lines import Line, logged


HARNESSES = ("lmms-eval", "lm-eval")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A column of Table 4, or an extra one.

    Attributes:
        key: name in scores.json and on the command line.
        title: heading of the column.

        harness: "lmms-eval" (image and text) or "lm-eval" (text only).
        task: the harness's stock task.
        task_folder: folder with the task's definition in the harness's `tasks` folder, if not that of its name.
        metric: key of the harness's number in its results, with its filter.
        measures: what that number is, for the footnote of the tables.
        scale: factor that turns the harness's number into points 0-100.
        shots: solved examples before each question.
        requests_per_row: likelihoods that the harness asks for per row, to show progress in rows.

        folder: the dataset's name on the Hub, and its folder in a data root.
        revision: commit of the dataset that `eval.data fetch` takes first; None for the newest.
        config: dataset configuration; None for the only one, "*" for all of them.
        split: split that is scored.
        columns: columns that the stock task reads.
        num_questions: questions in the official data, the paper's denominator.
        hub_rows: rows of the split on the Hub, where they are not the questions.
        fixed_rows: the stock score divides by this number of rows, whatever the data has.
        subtasks: column that names the parts of the breakdown; None for none.
        further: other numbers of the harness that the breakdown shows, (name, key), on the scale of `metric`.
        always_image: whether every question is about an image; lm-eval's tasks have none.

        correct: 1 or 0 from the lines of one item in the sample log.
        parses: whether the scorer can read the answer in a line.
        item: id of the item that a line belongs to.
        order: what lines are sorted by before they are grouped into items; None keeps the log's order.
        stratum: group within which items are resampled, from the lines of an item; None for a single one.
        macro: the score is the mean over strata, not over items.

        image_id: column that names a row, here and in boxes.json, if the diagnostics draw images from the benchmark.
        question_suffix: what the harness adds to the question about such an image.
    """

    key: str
    title: str

    harness: str
    task: str
    task_folder: str = ""
    metric: str
    measures: str
    scale: float = 100
    shots: int = 0
    requests_per_row: int = 1

    folder: str
    revision: str | None = None
    config: str | None = None
    split: str
    columns: tuple[str, ...]
    num_questions: int
    hub_rows: int | None = None
    fixed_rows: int | None = None
    subtasks: str | None = None
    further: tuple[tuple[str, str], ...] = ()
    always_image: bool = True

    correct: Callable[[list[Line]], float]
    parses: Callable[[Line], bool] = sample_lines.always
    item: Callable[[Line], str] = sample_lines.document
    order: Callable[[Line], Any] | None = None
    stratum: Callable[[list[Line]], str] | None = None
    macro: bool = False

    image_id: str = ""
    question_suffix: str = ""


BENCHMARKS = (
    Benchmark(
        key="mmbench",
        title="MMBench",
        harness="lmms-eval",
        task="mmbench_en_dev_static",
        task_folder="mmbench",
        metric="gpt_eval_score,none",
        measures="circular accuracy: a question is right if every rotation of its options is",
        scale=1,
        folder="lmms-lab-encoder/MMBench",
        revision="56ba1af8954932c4804bd3f522e05ed96e63b654",
        config="en",
        split="dev",
        columns=("index", "question", "hint", "answer", "A", "B", "C", "D", "category", "L2-category", "image"),
        num_questions=1164,
        hub_rows=4329,  # every rotation of a question is a row
        subtasks="L2-category",
        correct=sample_lines.mmbench_correct,
        parses=sample_lines.mmbench_parses,
        item=sample_lines.mmbench_question,
        order=sample_lines.mmbench_index,
        image_id="index",
    ),
    Benchmark(
        key="mmstar",
        title="MM-Star",
        harness="lmms-eval",
        task="mmstar",
        metric="average,none",
        measures="mean over the l2 categories of their accuracies",
        folder="Lin-Chen/MMStar",
        revision="bc98d668301da7b14f648724866e57302778ab27",
        split="val",
        columns=("index", "question", "image", "answer", "category", "l2_category"),
        num_questions=1500,
        subtasks="category",
        correct=logged("average", "score"),
        parses=sample_lines.mmstar_parses,
        stratum=logged("average", "l2_category"),
        macro=True,
        image_id="index",
    ),
    Benchmark(
        key="pope",
        title="POPE",
        harness="lmms-eval",
        task="pope",
        metric="pope_accuracy,none",
        measures="accuracy over the three samplings; the paper says neither accuracy nor F1",
        folder="lmms-lab-encoder/POPE",
        revision="4db1276663dfa5eb8ad16a52d24c31a09e470896",
        split="test",
        columns=("question_id", "question", "answer", "image"),
        num_questions=9000,
        subtasks="category",
        further=(("F1", "pope_f1_score,none"),),
        correct=logged("pope_accuracy", "score"),
        parses=sample_lines.pope_parses,
        image_id="question_id",
        question_suffix="\nAnswer the question using a single word or phrase.",
    ),
    Benchmark(
        key="seedbench_2_plus",
        title="SEED-2-Plus",
        harness="lmms-eval",
        task="seedbench_2_plus",
        metric="seedbench_2_plus_all,none",
        measures="accuracy",
        folder="doolayer/SEED-Bench-2-Plus",
        split="test",
        columns=("question", "choice_A", "choice_B", "choice_C", "choice_D", "answer", "question_image_type"),
        num_questions=2277,
        subtasks="question_image_type",
        correct=sample_lines.seedbench_correct,
        parses=sample_lines.seedbench_parses,
    ),
    Benchmark(
        key="ocrbench",
        title="OCRBench",
        harness="lmms-eval",
        task="ocrbench",
        metric="ocrbench_accuracy,none",
        measures="accuracy over 1,000 questions, the score divided by 10",
        folder="echo840/OCRBench",
        revision="92a54bd1384387c178d5a07140a2d85e0a3d12e1",
        split="test",
        columns=("dataset", "question", "question_type", "answer", "image"),
        num_questions=1000,
        fixed_rows=1000,
        subtasks="question_type",
        correct=logged("ocrbench_accuracy", "score"),
        parses=sample_lines.not_empty,
    ),
    Benchmark(
        key="scienceqa",
        title="ScienceQA",
        harness="lmms-eval",
        task="scienceqa",
        metric="exact_match,none",
        measures="accuracy on ScienceQA-FULL, questions without an image included",
        folder="lmms-lab-encoder/ScienceQA",
        revision="69dd4d6b67373d38f96a5badd5d24d0eb5bcdc50",
        config="ScienceQA-FULL",
        split="test",
        columns=("image", "question", "choices", "answer", "hint"),
        num_questions=4241,
        subtasks="subject",
        always_image=False,
        correct=logged("exact_match"),
        parses=sample_lines.letter_parses,
    ),
    Benchmark(
        key="ai2d",
        title="AI2D",
        harness="lmms-eval",
        task="ai2d",
        metric="exact_match,flexible-extract",
        measures="accuracy",
        folder="lmms-lab-encoder/ai2d",
        revision="c83a9b9692933aff8349157c88a413df9d02c4e5",
        split="test",
        columns=("question", "options", "answer", "image"),
        num_questions=3088,
        correct=logged("exact_match"),
        parses=sample_lines.letter_in_brackets_parses,
    ),
    Benchmark(
        key="hellaswag",
        title="HellaSwag",
        harness="lm-eval",
        task="hellaswag",
        metric="acc_norm,none",
        measures="accuracy by likelihood per character, 0-shot",
        requests_per_row=4,
        folder="Rowan/hellaswag",
        revision="218ec52e09a7e7462a5400043bb9a69a41d06b76",
        split="validation",
        columns=("activity_label", "ctx_a", "ctx_b", "endings", "label"),
        num_questions=10042,
        correct=logged("acc_norm"),
    ),
    Benchmark(
        key="mmlu",
        title="MMLU",
        harness="lm-eval",
        task="mmlu",
        task_folder="mmlu/default",
        metric="acc,none",
        measures="accuracy over the questions of 57 subjects, 0-shot",
        requests_per_row=4,
        folder="cais/mmlu",
        revision="c30699e8356da336a370243923dbaf21066bb9fe",
        config="*",
        split="test",
        columns=("question", "choices", "answer"),
        num_questions=14042,
        subtasks="subject",
        correct=logged("acc"),
        stratum=logged("file"),
    ),
)
# Evaluated only if `--tasks` names them; in neither Table 4's average nor its correction for many tests.
HELLASWAG, MMLU = BENCHMARKS[-2:]
EXTRA_BENCHMARKS = (
    replace(
        HELLASWAG,
        key="hellaswag_acc",
        title="HellaSwag acc",
        metric="acc,none",
        measures="accuracy by likelihood, 0-shot",
        correct=logged("acc"),
    ),
    replace(
        MMLU,
        key="mmlu_5shot",
        title="MMLU 5-shot",
        measures="accuracy over the questions of 57 subjects, 5-shot",
        shots=5,
    ),
)

BY_KEY = {benchmark.key: benchmark for benchmark in (*BENCHMARKS, *EXTRA_BENCHMARKS)}
TITLES = {key: benchmark.title for key, benchmark in BY_KEY.items()}


def task_folders(harness: str) -> list[str]:
    """Folders of the harness with the tasks above: indexing them alone saves 10 CPU-seconds per worker."""
    return list(dict.fromkeys(b.task_folder or b.task for b in BY_KEY.values() if b.harness == harness))


def datasets() -> list[Benchmark]:
    """The first benchmark of each dataset."""
    return list({benchmark.folder: benchmark for benchmark in reversed(BY_KEY.values())}.values())[::-1]
