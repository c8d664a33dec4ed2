"""Settings: the rows."""

from dataclasses import dataclass, field
from typing import ClassVar

from modeling_aligned_llava.errors import UserError


@dataclass
class DataArguments:
    """Which rows are trained on, and how they are read."""

    _argument_group_name: ClassVar[str] = "data"

    data_path: str = field(
        metadata={
            "help": "Training data in LLaVA's format: a .json, .jsonl or .parquet file, a folder of .parquet files, a "
            "Hub id, or a .yaml file that lists a weighted mixture of these."
        }
    )
    image_folder: str | None = field(
        default=None,
        metadata={"help": "Root folder of the image files named in the data. Not needed for embedded images."},
    )
    dataset: str | None = field(
        default=None,
        metadata={
            "help": "Name of the dataset for the model card; a Hub id if it has one. It does not affect training."
        },
    )
    prompt_format: str = field(
        default="chat",
        metadata={
            "help": "How a row becomes text. `plain`: image, caption, end of text (stage 1). `chat`: the model's chat "
            "template."
        },
    )
    bad_rows_limit: float = field(
        default=0.001,
        metadata={
            "help": "Largest share of rows that may be damaged before the run stops. Rows that are only too long or "
            "have turns in another order are filtered and do not count. `quarantine.jsonl` lists all of them."
        },
    )
    data_cache: str | None = field(
        default=None,
        metadata={"help": "Folder for prepared rows. If None, they are stored in the cache of `datasets`."},
    )

    def __post_init__(self) -> None:
        if self.prompt_format not in ("plain", "chat"):
            raise UserError(f"prompt_format must be plain or chat, not {self.prompt_format!r}")
        if not 0 <= self.bad_rows_limit <= 1:
            raise UserError(f"bad_rows_limit must be between 0 and 1, not {self.bad_rows_limit}")
