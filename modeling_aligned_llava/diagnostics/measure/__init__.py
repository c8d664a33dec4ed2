"""Measurements of a model: each returns numbers and prints nothing."""
