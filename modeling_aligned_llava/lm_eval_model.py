"""The former module of the lm-eval adapter; names the new one."""

import sys


sys.exit("error: this command is now `python -m modeling_aligned_llava.harness.lm_eval_model`")
