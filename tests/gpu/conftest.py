"""The tiny conversations and stages of tests/train."""

from tests.train.conftest import stage_arguments, tiny_data


__all__ = ["stage_arguments", "tiny_data"]
