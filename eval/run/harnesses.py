"""One interface to both harnesses: run a stock task on a loaded checkpoint and write the harness's files.

Only worker processes import this module (9 CPU-seconds). The model is loaded once per process, outside the harness.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import modeling_aligned_llava.loading.registration  # noqa: F401  the Auto classes then know the model
from eval.data.benchmarks import Benchmark, task_folders
from eval.plan.job import Job
from modeling_aligned_llava.inference.served import Server


# Thoughts are no part of an answer: the default of lmms-eval's command line, which its function does not have.
REASONING_TAGS = '[["<think>", "</think>"], ["<analysis>", "</analysis>"]]'


class LmmsEval:
    """lmms-eval with this package's adapter."""

    def __init__(self, job: Job, server: Server | None = None) -> None:
        import lmms_eval.tasks

        self.job, self.server = job, server
        stock = Path(lmms_eval.tasks.__file__).parent
        self.tasks = lmms_eval.tasks.TaskManager(
            "ERROR",
            include_path=[f"{stock / folder}/" for folder in task_folders("lmms-eval")],
            include_defaults=False,
            model_name="aligned_llava",
        )
        self.adapter(None, lambda rows: None)  # a checkpoint that cannot be loaded fails here, once for all tasks

    def adapter(self, task: str | None, progress: Callable[[float], None]) -> Any:
        from modeling_aligned_llava.harness.lmms_eval_model import AlignedLlava

        job = self.job
        return AlignedLlava(
            pretrained=job.checkpoint,
            max_new_tokens=job.max_new_tokens,
            answer_log=None if task is None else job.answer_log(task),
            blank_images=job.blank_images,
            server=self.server,
            progress=progress,
            **_model_options(job),
        )

    def evaluate(self, benchmark: Benchmark, folder: Path, progress: Callable[[float], None]) -> dict[int, str]:
        """Run one stock task and write the harness's results and sample logs into `folder`.

        Args:
            progress: called with the number of rows answered since the last call.

        Returns:
            Document -> digest of its image, which groups questions about one image; empty for text tasks.
        """
        from lmms_eval.evaluator import simple_evaluate
        from lmms_eval.loggers import EvaluationTracker
        from lmms_eval.utils import get_datetime_str

        tracker = EvaluationTracker(output_path=str(folder))
        arguments = f"pretrained={self.job.checkpoint},batch_size={self.job.batch_size}"
        tracker.general_config_tracker.log_experiment_args("aligned_llava", arguments, "", "", False)
        adapter = self.adapter(benchmark.task, progress)
        results = simple_evaluate(
            model=adapter,
            model_args=arguments,
            cli_args=SimpleNamespace(output_path=str(folder), process_with_media=False, reasoning_tags=REASONING_TAGS),
            process_docs_parallel=1,
            **_settings(self.job, benchmark, self.tasks),
        )
        _save(tracker, results, datetime_str=get_datetime_str())
        return adapter.images


def _model_options(job: Job) -> dict[str, Any]:
    """What the models of both harnesses are made with."""
    names = ("dtype", "device", "batch_size", "trust_remote_code", "shared_prefix")
    return {"fingerprint": job.weights} | {name: getattr(job, name) for name in names}


class LmEval:
    """lm-eval on the decoder, with the harness's defaults: no chat template, no system prompt."""

    def __init__(self, job: Job, server: Server | None = None) -> None:
        import lm_eval.tasks

        from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM

        self.job = job
        stock = Path(lm_eval.tasks.__file__).parent
        self.tasks = lm_eval.tasks.TaskManager(
            include_path=[stock / folder for folder in task_folders("lm-eval")], include_defaults=False
        )
        self.model = AlignedLlavaLM(job.checkpoint, server=server, **_model_options(job))

    def evaluate(self, benchmark: Benchmark, folder: Path, progress: Callable[[float], None]) -> dict[int, str]:
        """As that of lmms-eval."""
        from lm_eval.evaluator import simple_evaluate
        from lm_eval.loggers import EvaluationTracker

        self.model.log_to(self.job.answer_log(benchmark.task))
        self.model.progress = lambda requests: progress(requests / benchmark.requests_per_row)
        tracker = EvaluationTracker(output_path=str(folder))
        tracker.general_config_tracker.log_experiment_args(
            "aligned_llava", f"pretrained={self.job.checkpoint}", None, None, False
        )
        settings = _settings(self.job, benchmark, self.tasks)
        _save(tracker, simple_evaluate(model=self.model, num_fewshot=benchmark.shots, **settings))
        return {}


def _settings(job: Job, benchmark: Benchmark, tasks: Any) -> dict[str, Any]:
    return {
        "tasks": [benchmark.task],
        "limit": job.limit,
        "batch_size": job.batch_size,
        "device": job.device,
        "task_manager": tasks,
        "bootstrap_iters": 0,
    }


def _save(tracker: Any, results: dict[str, Any], **stamp: str) -> None:
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples, **stamp)
    for name, rows in samples.items():
        tracker.save_results_samples(task_name=name, samples=rows)
