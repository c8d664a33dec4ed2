"""Fixtures of the tests of the package."""

import pytest
import torch
from transformers.integrations.flex_attention import WrappedFlexAttention


@pytest.fixture
def eager_flex(monkeypatch):
    """`flex_attention` without its compilation, which takes longer than a test may: dense, with the same masks."""
    monkeypatch.setattr(WrappedFlexAttention, "_instance", None)  # it keeps what it has compiled
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
