"""What a checkpoint cannot answer, told by its configuration and processor alone, before any work starts."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoConfig, AutoProcessor

from eval.data.benchmarks import Benchmark
from eval.suite.options import TRANSFORMERS, Options
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import Generator
from modeling_aligned_llava.inference.prompt import names_image_token
from modeling_aligned_llava.loading.checkpoint import CAUSAL, VISION_LANGUAGE, load_part, read_config, sees_images


def check_servable(name: str, folder: Path, benchmarks: Sequence[Benchmark], options: Options) -> None:
    """Check that a model can be asked what these benchmarks ask.

    Raises:
        UserError: it needs code of its own that may not run, its processor cannot be loaded or names no image token,
            or some questions have no image and it answers none of that kind.
    """
    what, settings, trust_remote_code = f"--models {name}", read_config(folder), options.trust_remote_code
    kind = settings["model_type"]
    ours = kind in VISION_LANGUAGE | CAUSAL and options.engine == TRANSFORMERS  # vLLM runs the folder's code
    if settings.get("auto_map") and not ours and not trust_remote_code:
        raise UserError(f"{what}: {kind} is custom code: read it in {folder}, then add --trust-remote-code")
    if not sees_images(folder):
        return
    processor = load_part(AutoProcessor, folder, what, trust_remote_code=trust_remote_code)
    if not names_image_token(processor):
        if any(benchmark.harness == "lmms-eval" for benchmark in benchmarks):
            raise UserError(f"{what}: {kind} cannot be served: its processor names no image token")
        return
    config = load_part(AutoConfig, folder, what, trust_remote_code=trust_remote_code)
    without_weights = SimpleNamespace(config=config, device="cpu", dtype=torch.float32)
    refused = [benchmark.key for benchmark in benchmarks if benchmark.has_text_only_questions]
    if refused and Generator(without_weights, processor).needs_images:
        left = " ".join(benchmark.key for benchmark in benchmarks if benchmark.key not in refused)
        advice = f"evaluate it alone with --tasks {left}" if left else "leave it out"
        raise UserError(f"{what}: {kind} answers no question without an image ({', '.join(refused)}): {advice}")
