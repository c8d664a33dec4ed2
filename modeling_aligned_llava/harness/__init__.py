"""Models for lmms-eval and lm-eval that log every answer."""
