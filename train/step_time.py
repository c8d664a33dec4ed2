"""How long a step takes: computing, memory traffic, communication and the opening of images, on any number of GPUs.

`train/cost.py` counts operations and bytes; a `Machine` says how fast they are. docs/scaling.md has its tables.
"""

import math
from dataclasses import dataclass, replace

import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from train.cost import Batch, copy_terabytes, count, flops, matmul_tflops, memory, traffic


SPARE = 2e9  # bytes of a GPU that CUDA and fragments of memory take
UTILIZATION = 0.6  # share of a machine's ceilings that the computing of a step reaches, until it is measured
OF_THE_SHEET = 0.8  # share of a data sheet's figures that a large matrix product, copy or message reaches
NODE = 8  # GPUs of a node
LATENCY = 20e-6  # seconds of one message between two GPUs
EXPOSED = 0.1  # share of the communication beside computing that still costs time, because both use the GPU
OPTIMIZER = 40  # bytes per trained parameter and step: gradient norm and clipping 12, Adam 28
CAST = 6  # bytes per trained parameter and micro-batch: float32 read, bfloat16 written
IMAGES_PER_WORKER = 50.0  # images that one worker opens and resizes per second, until it is measured


@dataclass(frozen=True)
class Machine:
    """What one GPU and its links reach.

    Args:
        memory: bytes.
        matmul: bfloat16 FLOP/s.
        bandwidth: bytes/s of memory, read and written.
        link: bytes/s in each direction to the GPUs of its node.
        network: bytes/s in each direction between nodes, the GPU's share.
    """

    memory: float
    matmul: float
    bandwidth: float
    link: float = math.inf
    network: float = math.inf


# The makers' data sheets: dense bfloat16, SXM boards, NVLink in one direction; 200 Gb/s (A100) and 400 Gb/s a GPU
# between nodes, as in DGX.
SHEETS = {
    "a100-40g": Machine(40e9, 312e12, 1.555e12, 300e9, 25e9),
    "a100": Machine(80e9, 312e12, 2.039e12, 300e9, 25e9),
    "h100": Machine(80e9, 989e12, 3.35e12, 450e9, 50e9),
    "h200": Machine(141e9, 989e12, 4.8e12, 450e9, 50e9),
}


@dataclass(frozen=True)
class Step:
    """Seconds of one optimizer step: the first three follow each other, while workers open images."""

    computing: float
    traffic: float
    communication: float
    images: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return max(self.computing + self.traffic + self.communication, self.images)

    @property
    def bottleneck(self) -> str:
        """What takes the most time."""
        if self.images >= self.seconds:
            return "opening images"
        parts = {"computing": self.computing, "memory traffic": self.traffic, "communication": self.communication}
        return max(parts, key=lambda name: parts[name])


def reached(sheet: Machine) -> Machine:
    """The ceilings of a machine that is known from its data sheet alone."""
    speeds = (sheet.matmul, sheet.bandwidth, sheet.link, sheet.network)
    return Machine(sheet.memory, *(OF_THE_SHEET * speed for speed in speeds))


def measured_here(memory: float, bf16: bool) -> Machine:
    """This machine, with the links of its data sheet; unknown ones cost nothing."""
    here = Machine(memory, matmul_tflops(bf16) * 1e12, copy_terabytes() * 1e12)
    sheet = sheet_here()
    return here if sheet is None else replace(here, link=reached(sheet).link, network=reached(sheet).network)


def sheet_here() -> Machine | None:
    """The data sheet of this machine's GPU, if it is one of `SHEETS`."""
    name = torch.cuda.get_device_name().lower() if torch.cuda.is_available() else ""
    return next((sheet for gpu, sheet in SHEETS.items() if gpu in name), None)


def default_engine(model: AlignedLlavaForConditionalGeneration, processes: int) -> str:
    """How processes share a stage: `ddp` for a projector, `fsdp2` for a whole model."""
    return "one" if processes == 1 else "fsdp2" if count(model) > 1e9 else "ddp"


def step_time(
    model: AlignedLlavaForConditionalGeneration,
    batch: Batch,
    machine: Machine,
    *,
    engine: str = "one",
    processes: int = 1,
    micro_batches: int = 1,
    bf16: bool = True,
    checkpointing: bool = False,
    utilization: float = UTILIZATION,
    images_per_second: float = math.inf,
) -> Step:
    """Seconds of a step of `micro_batches` batches on each of `processes` GPUs under `engine`.

    Args:
        images_per_second: what all workers of one process open.
    """
    trained = count(model)
    shards = processes if engine == "fsdp2" else 1
    casts = CAST * trained / shards if bf16 and engine in ("one", "ddp", "fsdp2") else 0
    each_computing = flops(model, batch, checkpointing) / machine.matmul / utilization
    each_traffic = (traffic(model, batch, bf16, checkpointing) + casts) / machine.bandwidth / utilization
    owned = trained / (1 if engine in ("one", "ddp") else processes)
    update = OPTIMIZER * owned / machine.bandwidth / utilization
    return Step(
        computing=micro_batches * each_computing,
        traffic=micro_batches * each_traffic + update,
        communication=_communication(
            model, machine, engine, processes, micro_batches, bf16, each_computing + each_traffic
        ),
        images=micro_batches * batch.images / images_per_second,
    )


def largest_batch(
    model: AlignedLlavaForConditionalGeneration,
    row: Batch,
    machine: Machine,
    most: int,
    *,
    engine: str,
    processes: int,
    checkpointing: bool,
) -> int:
    """The largest power of two of rows, up to `most`, that fits into a GPU; 0 if a single one does not."""

    def need(rows: int) -> float:
        batch = Batch(rows, row.length, rows * row.images, rows * row.labels)
        return memory(model, batch, engine=engine, processes=processes, checkpointing=checkpointing).total

    first = need(1)
    room = machine.memory - SPARE - first
    if room < 0:
        return 0
    rows = min(most, 1 + int(room / (need(2) - first)))  # each row keeps as many activations
    return 2 ** (rows.bit_length() - 1)


def messages(
    model: AlignedLlavaForConditionalGeneration, engine: str, processes: int, bf16: bool = True
) -> tuple[float, float]:
    """Bytes that each GPU sends: in every micro-batch, and once in a step (float32 gradients, but ZeRO's bfloat16)."""
    trained, everything = count(model), sum(parameter.numel() for parameter in model.parameters())
    width = 2 if bf16 else 4
    share = (processes - 1) / processes
    per_batch, per_step = {
        "one": (0, 0),
        "ddp": (0, 2 * 4 * trained),  # an all-reduce sends everything twice
        "fsdp2": (2 * width * everything + 4 * trained, 0),  # weights for the forward and backward pass, gradients
        "zero2": (width * trained, width * trained),  # gradients, then the new weights
        "zero3": (2 * width * everything + width * trained, 0),
    }[engine]
    return share * per_batch, share * per_step


def _communication(
    model: AlignedLlavaForConditionalGeneration,
    machine: Machine,
    engine: str,
    processes: int,
    micro_batches: int,
    bf16: bool,
    computing: float,
) -> float:
    """Seconds of a step in which GPUs wait for each other; `computing` is the time of one micro-batch."""
    if processes == 1:
        return 0.0
    per_batch, per_step = messages(model, engine, processes, bf16)
    layers = model.config.text_config.num_hidden_layers + model.config.vision_config.num_hidden_layers
    delay = LATENCY * math.log2(processes)
    speed = machine.link if processes <= NODE else min(machine.link, NODE * machine.network)
    total = 0.0
    if per_batch:
        collectives = layers * (3 if engine in ("fsdp2", "zero3") else 1)
        total += micro_batches * _exposed(per_batch / speed + collectives * delay, computing)
    if per_step:
        beside = computing / 2 if engine == "ddp" else 0.0  # the backward pass of the last micro-batch
        total += _exposed(per_step / speed + delay, beside)
    return total


def _exposed(sending: float, computing: float) -> float:
    return max(sending - computing, EXPOSED * sending)
