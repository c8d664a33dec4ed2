"""Settings: what is measured during training."""

from dataclasses import dataclass, field
from typing import ClassVar

from modeling_aligned_llava.errors import UserError


@dataclass
class MonitoringArguments:
    """What is measured during training, besides the loss and the gradients."""

    _argument_group_name: ClassVar[str] = "monitoring"

    eval_rows: int = field(
        default=0,
        metadata={
            "help": "Number of rows held out from training. Their loss is logged every `eval_steps`; requires "
            "`eval_strategy: steps`."
        },
    )
    sample_rows: int = field(
        default=0,
        metadata={
            "help": "Number of held-out rows that the model answers at each evaluation. The answers are written to "
            "`samples.jsonl`."
        },
    )
    probe_rows: int = field(
        default=8,
        metadata={
            "help": "Number of rows on which norm and cosine are measured layer by layer, at the start and every "
            "`save_steps`. The results are written to `probe.jsonl`; 0 disables the probe."
        },
    )

    def __post_init__(self) -> None:
        if self.sample_rows > self.eval_rows:
            raise UserError(f"sample_rows ({self.sample_rows}) must not exceed eval_rows ({self.eval_rows})")
