"""The evaluations of a run: a job for each (checkpoint, harness). Finds a user's mistakes before any work starts."""

import hashlib
import os
import shlex
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoConfig, AutoProcessor

from eval.data import mirror
from eval.data.benchmarks import BY_KEY, HARNESSES, Benchmark
from eval.options import TRANSFORMERS, Options
from eval.plan.job import Job, Task
from eval.plan.models import Model, Models
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.provenance import producer
from modeling_aligned_llava.inference.generator import Generator
from modeling_aligned_llava.inference.prompt import names_image_token
from modeling_aligned_llava.loading.checkpoint import CAUSAL, VISION_LANGUAGE, load_part, read_config
from modeling_aligned_llava.loading.device import resolve_device, resolve_dtype
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


def plan_evaluations(
    options: Options,
    models: Models,
    blank_images: bool = False,
    untrained: Collection[str] = (),
    output: Path | None = None,
) -> list[Job]:
    """Plan the jobs.

    Args:
        untrained: models without weights yet; their jobs lack the digest.
        output: where results are written, if not in the options' folder.

    Returns:
        One job for each (checkpoint, harness), the long multimodal ones first.

    Raises:
        UserError: a model, the data root or a benchmark's data cannot be used.
    """
    folder = output or options.folder
    root = options.data.resolve()
    if not root.is_dir():
        raise UserError(f"--data {options.data}: no such folder")
    engine = options.engine if options.engine == TRANSFORMERS else _absolute(options.engine)
    benchmarks = [benchmark for benchmark in BY_KEY.values() if benchmark.key in options.tasks]
    if not any(model.multimodal for model in models.values()):
        benchmarks = [benchmark for benchmark in benchmarks if benchmark.harness == "lm-eval"]
    fetched = (root / mirror.REVISIONS).exists()
    for benchmark in benchmarks:
        if (problem := mirror.problem(root, benchmark, hub_rows=fetched)) is not None:
            raise UserError(f"benchmark {benchmark.key}: {problem}")
    tasks = {
        b.key: Task(b.key, mirror.count_rows(root, b, options.limit), mirror.fingerprint(root, b)) for b in benchmarks
    }
    # The datasets cache identifies a folder by its name, not by its content, so each content gets its own cache.
    content = hashlib.sha256("".join(task.data for task in tasks.values()).encode()).hexdigest()[:16]
    trained = [model for name, model in models.items() if name not in untrained]
    for model in trained:
        asked = [benchmark for benchmark in benchmarks if model.multimodal or benchmark.harness == "lm-eval"]
        check_servable(model, asked, options)
    weights = {model.name: hash_checkpoint(model.folder) for model in trained}
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype, options.device)
    produced_by = producer(device)
    return [
        Job(
            name=model.name,
            checkpoint=str(model.folder),
            weights=weights.get(model.name, ""),
            harness=harness,
            tasks=[tasks[benchmark.key] for benchmark in benchmarks if benchmark.harness == harness],
            root=str(root),
            output=str(folder.resolve() / "harness"),
            answers=str(folder.resolve() / "answers"),
            cache=str(options.run.resolve() / "cache" / content),
            batch_size=options.batch_size,
            max_new_tokens=options.max_new_tokens,
            dtype=dtype,
            device=device,
            blank_images=blank_images,
            trust_remote_code=options.trust_remote_code,
            shared_prefix=not options.no_shared_prefix,
            engine=engine,
            limit=options.limit,
            producer=produced_by,
        )
        for harness in HARNESSES
        for model in models.values()
        if model.multimodal or harness == "lm-eval"
    ]


def _absolute(engine: str) -> str:
    """The command with its program as an absolute path: a worker runs in a folder of its own.

    Raises:
        UserError: there is no such program.
    """
    name, *options = shlex.split(engine) or [""]
    program = shutil.which(name)
    if program is None:
        raise UserError(f"--engine {engine}: no program {name}; it is the path of vLLM's `vllm`")
    return shlex.join([os.path.abspath(program), *options])


def check_servable(model: Model, benchmarks: Sequence[Benchmark], options: Options) -> None:
    """Check, by its configuration and processor alone, that a model can be asked what these benchmarks ask.

    Raises:
        UserError: it needs code of its own that may not run, its processor cannot be loaded or names no image token,
            or some questions have no image and it answers none of that kind.
    """
    folder, name, trust_remote_code = model.folder, f"--models {model.name}", options.trust_remote_code
    settings = read_config(folder)
    kind = settings["model_type"]
    ours = kind in VISION_LANGUAGE | CAUSAL and options.engine == TRANSFORMERS  # vLLM runs the folder's code
    if settings.get("auto_map") and not ours and not trust_remote_code:
        raise UserError(f"{name}: {kind} is custom code: read it in {folder}, then add --trust-remote-code")
    if not model.multimodal:
        return
    processor = load_part(AutoProcessor, folder, name, trust_remote_code=trust_remote_code)
    if not names_image_token(processor):
        if any(benchmark.harness == "lmms-eval" for benchmark in benchmarks):
            raise UserError(f"{name}: {kind} cannot be served: its processor names no image token")
        return
    config = load_part(AutoConfig, folder, name, trust_remote_code=trust_remote_code)
    without_weights = SimpleNamespace(config=config, device="cpu", dtype=torch.float32)
    refused = [b.key for b in benchmarks if b.harness == "lm-eval" or not b.always_image]
    if refused and Generator(without_weights, processor).needs_images:
        left = " ".join(benchmark.key for benchmark in benchmarks if benchmark.key not in refused)
        advice = f"evaluate it alone with --tasks {left}" if left else "leave it out"
        raise UserError(f"{name}: {kind} answers no question without an image ({', '.join(refused)}): {advice}")
