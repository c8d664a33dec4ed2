"""Settings: what is measured during training."""

from dataclasses import dataclass, field
from typing import ClassVar


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
    probe_rows: int = field(
        default=8,
        metadata={
            "help": "Number of rows on which norm and cosine are measured layer by layer, at the start and every "
            "`save_steps`. The results are written to `probe.jsonl`; 0 disables the probe."
        },
    )
