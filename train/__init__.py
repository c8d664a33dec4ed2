"""Two-stage training (paper Appendix E) on TRL's SFTTrainer; start with `python -m train.sft`."""

import logging
import os


os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # otherwise TRL reports every trainer it builds
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # imported by peft; it warns about optional kernels
