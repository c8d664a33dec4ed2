"""Evaluation: the nine benchmarks through lmms-eval and lm-eval, statistics, tables, reports, diagnostics."""

from early_signals import end_on_early_signals


end_on_early_signals()
