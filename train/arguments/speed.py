"""Settings that save time or memory."""

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class SpeedArguments:
    """Settings that save time or memory and leave loss and gradients unchanged (docs/train.md)."""

    _argument_group_name: ClassVar[str] = "speed"

    labelled_logits_only: bool = field(
        default=True,
        metadata={
            "help": "Whether to compute logits only at labelled positions on a CPU too. On CUDA, TRL always does so."
        },
    )
    packed_rows: bool = field(
        default=False,
        metadata={
            "help": "Whether to concatenate the rows of a micro-batch into one sequence without padding. Rows do not "
            "attend to each other."
        },
    )
    feature_cache: str | None = field(
        default=None,
        metadata={
            "help": "Folder in which to cache the features of a frozen vision tower; all methods share it. If None, "
            "features are not cached."
        },
    )
    feature_cache_gb: float = field(default=50.0, metadata={"help": "Maximum size of the feature cache in GB."})
