"""Runs benchmarks on checkpoints: plan, schedule, workers, live table."""
