"""The nine columns of Table 4 and two more: which stock task of which harness, which of its numbers, on which dataset.

One row a benchmark; nothing else in the suite knows a task by name but `samples.py`, which reads its logs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """A column of Table 4, or a further number.

    Attributes:
        key: name in scores.json and on the command line.
        title: heading of the column.
        harness: "lmms-eval" (image and text) or "lm-eval" (text only).
        task: the harness's stock task.
        metric: key of the harness's number in its results.
        scale: what turns the harness's number into points 0-100.
        folder: the dataset's folder in the mirror, its name on the Hub.
        config: dataset configuration; None for the only one, "*" for all of them.
        split: split that is scored.
        paper_n: the paper's denominator (questions for MMBench). The count of a data root is its own.
        macro: the score is the plain mean over groups of questions (MM-Star: l2_category), not over questions.
        shots: solved examples before each question.
        subtasks: the dataset's column that names the parts of its break-down; None for none.
    """

    key: str
    title: str
    harness: str
    task: str
    metric: str
    scale: float
    folder: str
    config: str | None
    split: str
    paper_n: int
    macro: bool = False
    shots: int = 0
    subtasks: str | None = None


# fmt: off
BENCHMARKS = (
    Benchmark("mmbench", "MMBench", "lmms-eval", "mmbench_en_dev_static", "gpt_eval_score,none", 1,
              "lmms-lab-encoder/MMBench", "en", "dev", 1164, subtasks="L2-category"),
    Benchmark("mmstar", "MM-Star", "lmms-eval", "mmstar", "average,none", 100,
              "Lin-Chen/MMStar", None, "val", 1500, macro=True, subtasks="category"),
    Benchmark("pope", "POPE", "lmms-eval", "pope", "pope_accuracy,none", 100,
              "lmms-lab-encoder/POPE", None, "test", 9000, subtasks="category"),
    Benchmark("seedbench_2_plus", "SEED-2-Plus", "lmms-eval", "seedbench_2_plus", "seedbench_2_plus_all,none", 100,
              "doolayer/SEED-Bench-2-Plus", None, "test", 2277, subtasks="question_image_type"),
    Benchmark("ocrbench", "OCRBench", "lmms-eval", "ocrbench", "ocrbench_accuracy,none", 100,
              "echo840/OCRBench", None, "test", 1000, subtasks="question_type"),
    Benchmark("scienceqa", "ScienceQA", "lmms-eval", "scienceqa", "exact_match,none", 100,
              "lmms-lab-encoder/ScienceQA", "ScienceQA-FULL", "test", 4241, subtasks="subject"),
    Benchmark("ai2d", "AI2D", "lmms-eval", "ai2d", "exact_match,flexible-extract", 100,
              "lmms-lab-encoder/ai2d", None, "test", 3088),
    Benchmark("hellaswag", "HellaSwag", "lm-eval", "hellaswag", "acc_norm,none", 100,
              "Rowan/hellaswag", None, "validation", 10042),
    Benchmark("mmlu", "MMLU", "lm-eval", "mmlu", "acc,none", 100,
              "cais/mmlu", "*", "test", 14042, subtasks="subject"),
)
# Asked for by name; outside Table 4, its average and its correction for many tests.
FURTHER = (
    Benchmark("hellaswag_acc", "HellaSwag acc", "lm-eval", "hellaswag", "acc,none", 100,
              "Rowan/hellaswag", None, "validation", 10042),
    Benchmark("mmlu_5shot", "MMLU 5-shot", "lm-eval", "mmlu", "acc,none", 100,
              "cais/mmlu", "*", "test", 14042, shots=5, subtasks="subject"),
)
# fmt: on

BY_KEY = {benchmark.key: benchmark for benchmark in (*BENCHMARKS, *FURTHER)}
HARNESSES = ("lmms-eval", "lm-eval")
# Where a harness keeps the definitions above: indexing these folders alone saves 10 CPU-seconds a worker.
TASK_FOLDERS = {
    "lmms-eval": ("mmbench", "mmstar", "pope", "seedbench_2_plus", "ocrbench", "scienceqa", "ai2d"),
    "lm-eval": ("hellaswag", "mmlu/default"),
}
