"""Functions that read a harness's sample log: right or wrong, and readable or not.

A line is one scored document. An item is what the score counts: one line, or in MMBench all rotations of a question.
The entries of `benchmarks.py` name the functions they need.
"""

import re
from collections.abc import Callable
from typing import Any


Line = dict[str, Any]
ROTATION = 1_000_000  # MMBench: index % ROTATION is the question, index // ROTATION the rotation of its options


def logged(*path: str) -> Callable[[list[Line]], Any]:
    """Reads the value that the harness logged under these keys of an item's first line."""

    def read(lines: list[Line]) -> Any:
        value: Any = lines[0]
        for key in path:
            value = value[key]
        return value

    return read


def document(line: Line) -> str:
    """Id of an item that is one line: its task and its document."""
    return f"{line['file']}/{line['doc_id']}"


def always(line: Line) -> bool:
    """For tasks scored by likelihood: there is no text that could be unreadable."""
    return True


# Right or wrong, where the harness logs no such number.


def mmbench_question(line: Line) -> str:
    return str(line["gpt_eval_score"]["index"] % ROTATION)


def mmbench_index(line: Line) -> int:
    return line["gpt_eval_score"]["index"]


def mmbench_correct(lines: list[Line]) -> float:
    """Right if the stock evaluator finds every rotation of the question right."""
    import pandas as pd
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator

    rotations = pd.DataFrame([line["gpt_eval_score"] for line in lines])
    rotations["prediction"] = rotations["prediction"].astype(str)
    answers = dict(zip(rotations["index"], rotations["answer"], strict=True))
    return mmbench_evaluator.eval_sub_data(rotations, answers, static_only=True)


def seedbench_correct(lines: list[Line]) -> float:
    answer = lines[0]["seedbench_2_plus_all"]
    return float(answer["pred"].lower().strip() == answer["answer"].lower().strip())


# Whether the stock scorer can read an answer. One that it cannot counts as wrong, whatever it means.


def mmbench_parses(line: Line) -> bool:
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator

    answer = line["gpt_eval_score"]
    return bool(mmbench_evaluator.prefetch_answer(answer) or extract_mcq_answer(answer["prediction"], list("ABCD")))


def mmstar_parses(line: Line) -> bool:
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer

    return bool(extract_mcq_answer(line["filtered_resps"], choices=list("ABCD")))


def pope_parses(line: Line) -> bool:
    return line["pope_accuracy"]["prediction"] in ("yes", "no")


def seedbench_parses(line: Line) -> bool:
    return line["seedbench_2_plus_all"]["pred"].upper() in tuple("ABCD")


def not_empty(line: Line) -> bool:
    return bool(line["filtered_resps"].strip())


def letter_parses(line: Line) -> bool:
    """ScienceQA accepts "A" in either case, or anything that begins with "A."; it has up to five options."""
    return bool(re.match(r"[A-Ea-e]\W*$|[A-E]\.", line["filtered_resps"].strip()))


def letter_in_brackets_parses(line: Line) -> bool:
    """AI2D also strips punctuation before the letter: "(A)"."""
    return bool(re.match(r"\W*[A-Ea-e]\W*$|[A-E]\.", line["filtered_resps"].strip()))
