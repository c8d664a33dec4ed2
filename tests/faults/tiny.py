"""What the campaigns damage, built once per process: tiny backbones, a checkpoint, training data."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.methods import method_fields
from tests.conftest import write_backbones
from tests.train.conftest import stage_commands, write_data


METHOD = "norm-gwc"


@dataclass(frozen=True)
class Tiny:
    """Tiny material in `root`: the folders `checkpoint` (of METHOD) and `data`."""

    root: Path
    checkpoint: Path
    data: Path
    command: Callable[..., list[str]]

    def stage2(self, root: Path, **settings: object) -> list[str]:
        """Command line of six steps of stage 2, a checkpoint every two, into `root/METHOD/stage2`."""
        return self.command(2, METHOD, root, **{"model_name_or_path": self.checkpoint, "probe_rows": 0, **settings})


@functools.cache
def tiny() -> Tiny:
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    backbones = write_backbones(root / "backbones")
    fields = method_fields(METHOD)
    checkpoint = assemble(backbones.vision, backbones.qwen2, root / "checkpoint", fields=fields)
    (root / "data").mkdir()
    data = write_data(root / "data")
    return Tiny(root, checkpoint, data, stage_commands(backbones, data))
