"""Two-stage training (paper Appendix E) on TRL's SFTTrainer; start with `python -m train.sft`."""

import logging
import os


os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # otherwise TRL reports every trainer it builds
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # imported by peft; it warns about optional kernels
# On a CPU, oneDNN keeps a kernel per shape of batch: 4 GB after 250 steps of smollm2-135m-dinov2, 2 GB with this.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
