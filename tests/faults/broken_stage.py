"""`python -m tests.faults.broken_stage FAULT ARGUMENT ...`: a stage with a broken step, one of several processes."""

import json
import os
import sys

from modeling_aligned_llava.errors import run_main
from tests.faults.broken_numbers import broken_step
from tests.train.sharded_on_cpu import shard_on_cpu
from train.stage import run_stage


def main() -> None:
    kind, step, name, value, process = json.loads(sys.argv[1])
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpu()
    with broken_step(kind, {step}, name, value, process):
        run_stage(sys.argv[2:])


if __name__ == "__main__":
    run_main(main)
