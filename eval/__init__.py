"""Evaluation: the nine benchmarks through lmms-eval and lm-eval, statistics, tables, reports, diagnostics."""
