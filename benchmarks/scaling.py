"""Training on paper: hours, GPU-hours, bottleneck and largest batch of both backbones and stages on 1 to 512 GPUs.

    python -m benchmarks.scaling --gpu h100                          # prints the tables
    python -m benchmarks.scaling --points RESULT.json                # with what train_throughput has measured
    python -m benchmarks.scaling --write docs/scaling.md             # renews the tables of the page

The model is that of the preflight (`train/step_time.py`). The ceilings are a data sheet's times a stated share, until
a result of `benchmarks.gpu` or `benchmarks.train_throughput` on a GPU gives measured ones.
"""

import argparse
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPVisionConfig, LlamaConfig, Qwen2Config, SiglipVisionConfig

from benchmarks.real_shapes import LLAMA, SIGLIP
from benchmarks.training_worlds import FROZEN, RATES, SHAPES, make_model
from eval.run.recipes import read_recipe
from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.diagnostics.output.tables import markdown_table
from modeling_aligned_llava.loading.build_once import replacing
from train.cost import Batch, meta_model
from train.optimization.parameter_groups import freeze, group_parameters
from train.step_time import (
    IMAGES_PER_WORKER,
    SHEETS,
    UTILIZATION,
    Machine,
    Step,
    default_engine,
    largest_batch,
    messages,
    reached,
    step_time,
)


GPUS = (1, 8, 64, 512)
WORKERS = 4  # of each process, as in the recipes
# google/siglip-so400m-patch14-384 as assembly keeps it: without last layer and pooling head
TOWER = SiglipVisionConfig.from_dict(
    {**SIGLIP.to_dict()["vision_config"], "num_hidden_layers": 26, "vision_use_head": False}
)
DECODERS = {
    # 128,256 and the image token, padded to a multiple of 64
    "llama-3.2-3b": LlamaConfig.from_dict({**LLAMA.to_dict(), "vocab_size": 128_320}),
    "qwen2.5-7b": Qwen2Config(
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152_064,
        tie_word_embeddings=False,
    ),
}
ROWS = {"stage1": 558_000, "stage2": 779_000, "stage2_lora": 779_000}
VISUAL_TOKENS = 729
# Text and supervised tokens of a mean row. Not counted on the data, which is not here: an estimate.
TEXT = {"stage1": (30, 25), "stage2": (300, 200), "stage2_lora": (300, 200)}


@dataclass(frozen=True)
class Published:
    """LLaVA-1.5-7B, https://github.com/haotian-liu/LLaVA, README.md, "Train", and scripts/v1_5."""

    hours: float
    gpu: str
    engine: str
    rows: int
    micro_batch: int
    frozen: list[str]
    text: int  # tokens of a mean row; not published: the estimate above


LLAVA = {
    "pretraining": Published(3.5, "a100", "zero2", 558_000, 32, ["vision_tower", "language_model", "lm_head"], 30),
    "finetuning": Published(10.0, "a100-40g", "zero3", 665_000, 16, ["vision_tower"], 300),
}
LLAVA_GPUS = 8


@cache
def paper_config(backbone: str) -> AlignedLlavaConfig:
    """The configuration that assembly makes of the paper's backbone."""
    text = DECODERS[backbone]
    return AlignedLlavaConfig(
        vision_config=TOWER, text_config=text, tie_word_embeddings=text.tie_word_embeddings, text_norm=1.0
    )


@cache
def paper_model(backbone: str, stage: str) -> AlignedLlavaForConditionalGeneration:
    """The model of a recipe on the meta device."""
    settings = read_recipe(backbone, stage)
    rates = {pattern: float(rate) for pattern, rate in settings["learning_rates"].items()}
    return meta_model(paper_config(backbone), rates, settings["frozen"], bf16=True, lora=settings.get("lora"))


def rows_batch(rows: int, stage: str) -> Batch:
    """A micro-batch of mean rows."""
    text, labels = TEXT[stage]
    return Batch(rows, VISUAL_TOKENS + text, images=rows, labels=rows * labels)


@dataclass(frozen=True)
class Plan:
    """A stage on a number of GPUs; `fits` is the largest micro-batch, 0 if there is none, then `step` is None."""

    engine: str
    global_batch: int
    fits: int
    micro_batch: int
    step: Step | None
    hours: float


def plan(
    backbone: str, stage: str, gpus: int, machine: Machine, utilization: float, engine: str | None = None
) -> Plan:
    """The stage with the largest micro-batch that fits. A global batch has at least one row for each GPU."""
    model, settings = paper_model(backbone, stage), read_recipe(backbone, stage)
    engine = engine or default_engine(model, gpus)
    checkpointing, global_batch = settings["gradient_checkpointing"], max(settings["global_batch_size"], gpus)
    sizes = {"engine": engine, "processes": gpus, "checkpointing": checkpointing}
    fits = largest_batch(model, rows_batch(1, stage), machine, settings["global_batch_size"], **sizes)
    if not fits:
        return Plan(engine, global_batch, 0, 0, None, math.nan)
    micro = min(fits, global_batch // gpus)
    step = step_time(
        model,
        rows_batch(micro, stage),
        machine,
        micro_batches=global_batch // gpus // micro,
        utilization=utilization,
        images_per_second=WORKERS * IMAGES_PER_WORKER,
        **sizes,
    )
    return Plan(engine, global_batch, fits, micro, step, ROWS[stage] / global_batch * step.seconds / 3600)


def llava_hours(stage: str, utilization: float = UTILIZATION) -> float:
    """What the model says about LLaVA-1.5-7B on eight A100."""
    run = LLAVA[stage]
    text = LlamaConfig(hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, vocab_size=32_000)
    vision = CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=336,
        patch_size=14,
    )
    config = AlignedLlavaConfig(vision_config=vision, text_config=text, tie_word_embeddings=False, text_norm=1.0)
    rates = {name: 1e-3 for name in ("multi_modal_projector", "language_model", "lm_head") if name not in run.frozen}
    length = 576 + run.text
    # its head sees every token
    batch = Batch(run.micro_batch, length, images=run.micro_batch, labels=run.micro_batch * length)
    step = step_time(
        meta_model(config, rates, run.frozen, bf16=True),
        batch,
        reached(SHEETS[run.gpu]),
        engine=run.engine,
        processes=LLAVA_GPUS,
        checkpointing=True,
        utilization=utilization,
        images_per_second=WORKERS * IMAGES_PER_WORKER,
    )
    return run.rows / (LLAVA_GPUS * run.micro_batch) * step.seconds / 3600


def measured(result: dict[str, Any]) -> dict[str, float]:
    """Stage -> utilization that `train_throughput` reached: the time at the ceilings over the time that it took."""
    shape = SHAPES[result["shape"]["name"]]
    precision, ceilings = next(iter(result["matmul_share"].items()))  # that of the runs comes first
    bandwidth = ceilings.get("copy_terabytes", math.inf) * 1e12  # older results do not have it
    machine = Machine(math.inf, ceilings["matmul_tflops"] * 1e12, bandwidth)
    found = {}
    for name, stage in result["stages"].items():
        number, runs = int(name[-1]), [pair["ours"] for pair in stage["pairs"]]
        model = make_model(shape, "norm-gwc", drop_unused=True, device="meta")
        freeze(model, group_parameters(model, RATES[number], FROZEN[number]), torch.float32)
        rows, micro = result["shape"]["rows"], shape.micro_batch[number]
        length, labels = (runs[0][what] / rows for what in ("tokens", "labels"))
        step = step_time(
            model,
            Batch(micro, round(length), images=micro, labels=micro * labels),
            machine,
            micro_batches=shape.global_batch // micro,
            bf16=precision == "bfloat16",
            checkpointing=shape.checkpointing[number],
            utilization=1.0,
        )
        ideal = rows / shape.global_batch * step.seconds
        found[name] = sum(ideal / run["seconds"] for run in runs) / len(runs)
    return found


@dataclass(frozen=True)
class Calibration:
    """The machine that the tables are about, and the utilization of each stage."""

    machine: Machine
    utilization: dict[str, float]
    source: str

    def of(self, stage: str) -> float:
        """The utilization of a stage; of one that was not measured, the stated one."""
        return self.utilization.get(stage.removesuffix("_lora"), UTILIZATION)


def calibration(gpu: str, points: list[Path]) -> Calibration:
    """The data sheet of `gpu`, or what results of `train_throughput` on one have measured."""
    machine = reached(SHEETS[gpu])
    utilization: dict[str, float] = {}
    for point in points:
        result = json.loads(point.read_text(encoding="utf-8"))
        ceilings = result["matmul_share"]["bfloat16"]
        speeds = {"matmul": ceilings["matmul_tflops"] * 1e12, "bandwidth": ceilings["copy_terabytes"] * 1e12}
        machine = replace(machine, **speeds)
        utilization |= measured(result)
    names = ", ".join(point.name for point in points)
    return Calibration(machine, utilization, names or "no measured point")


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def hours_table(given: Calibration) -> str:
    """Hours and GPU-hours of every stage on every number of GPUs."""
    rows = []
    for backbone in DECODERS:
        for stage in ROWS:
            for gpus in GPUS:
                found = plan(backbone, stage, gpus, given.machine, given.of(stage))
                cells = [f"`{backbone}/{stage}`", str(gpus), found.engine]
                if found.step is None:
                    rows.append([*cells, "none fits", *["-"] * 5])
                    continue
                larger = "" if found.global_batch == read_recipe(backbone, stage)["global_batch_size"] else " *"
                accumulated = found.global_batch // gpus // found.micro_batch
                split = f"{found.global_batch}{larger} = {found.micro_batch} x {gpus} x {accumulated}"
                times = [f"{found.step.seconds:.2f}", f"{found.hours:.2f}", f"{found.hours * gpus:.0f}"]
                rows.append([*cells, str(found.fits), split, *times, found.step.bottleneck])
    heads = ["recipe", "GPUs", "engine", "largest micro-batch", "global batch", "s a step", "hours", "GPU-hours"]
    return markdown_table([*heads, "bottleneck"], rows)


def engines_table(given: Calibration, gpus: int = 64) -> str:
    """What each engine sends and takes in stage 2."""
    rows = []
    for backbone in DECODERS:
        for engine in ("ddp", "fsdp2", "zero2", "zero3"):
            found = plan(backbone, "stage2", gpus, given.machine, given.of("stage2"), engine)
            per_batch, per_step = messages(paper_model(backbone, "stage2"), engine, gpus)
            cells = [f"`{backbone}/stage2`", engine, f"{per_batch / 1e9:.1f}", f"{per_step / 1e9:.1f}"]
            if found.step is None:
                rows.append([*cells, "none fits", "-", "-"])
                continue
            waiting = percent(found.step.communication / found.step.seconds)
            rows.append([*cells, str(found.fits), waiting, f"{found.hours:.2f}"])
    heads = ["recipe", "engine", "GB sent a micro-batch", "GB sent a step", "largest micro-batch", "time waiting"]
    return markdown_table([*heads, "hours"], rows)


def check_table() -> str:
    """LLaVA-1.5-7B: the model's hours beside the published ones."""
    rows = []
    for stage, run in LLAVA.items():
        hours = llava_hours(stage)
        gpu = {"a100": "A100 80 GB", "a100-40g": "A100 40 GB"}[run.gpu]
        settings = [f"8 {gpu}", run.engine, f"{run.rows:,}", str(576 + run.text)]
        rows.append([stage, *settings, f"{run.hours:.1f}", f"{hours:.1f}", percent(hours / run.hours - 1)])
    return markdown_table(
        ["LLaVA-1.5-7B", "GPUs", "engine", "rows", "tokens a row", "published", "model", "difference"], rows
    )


def tables(gpu: str, given: Calibration) -> str:
    """All tables, as Markdown."""
    machine, sheet = given.machine, SHEETS[gpu]
    ceilings = [
        ["bfloat16 products, TFLOP/s", f"{sheet.matmul / 1e12:.0f}", f"{machine.matmul / 1e12:.0f}"],
        ["memory, TB/s", f"{sheet.bandwidth / 1e12:.2f}", f"{machine.bandwidth / 1e12:.2f}"],
        ["links within a node, GB/s", f"{sheet.link / 1e9:.0f}", f"{machine.link / 1e9:.0f}"],
        ["network of a GPU, GB/s", f"{sheet.network / 1e9:.0f}", f"{machine.network / 1e9:.0f}"],
    ]
    used = ", ".join(f"{stage} {percent(given.of(stage))}" for stage in ("stage1", "stage2"))
    return "\n\n".join(
        [
            "## LLaVA-1.5, published and computed",
            check_table(),
            f"## Ceilings of one {gpu.upper()}",
            markdown_table(["", "data sheet", "used"], ceilings),
            f"Calibrated by: {given.source}. Share of the ceilings that a step reaches: {used}.",
            f"## Hours on {gpu.upper()}s",
            hours_table(given),
            "\\* A global batch of one row a GPU, larger than the recipe's: another training than the paper's.",
            "## Engines of stage 2 on 64 GPUs",
            engines_table(given),
        ]
    )


BEGIN, END = "<!-- tables: python -m benchmarks.scaling --write docs/scaling.md -->", "<!-- end of tables -->"


def renewed(page: str, text: str) -> str:
    """The page with `text` between its two marks."""
    return re.sub(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", lambda _: f"\n{text}\n\n", page, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", choices=SHEETS, default="h100")
    parser.add_argument("--points", type=Path, nargs="+", default=[], help="results of train_throughput on this GPU")
    parser.add_argument("--write", type=Path, help="page whose tables are renewed")
    args = parser.parse_args()
    text = tables(args.gpu, calibration(args.gpu, args.points))
    if args.write is None:
        print(text)  # noqa: T201
        return
    page = renewed(args.write.read_text(encoding="utf-8"), text)
    with replacing(args.write) as unfinished:
        unfinished.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
