"""The former place of `modeling_aligned_llava.harness.lm_eval_model`; says so."""

import sys


sys.exit("error: this command is now `python -m modeling_aligned_llava.harness.lm_eval_model`")
