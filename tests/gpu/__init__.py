"""Correctness on CUDA; without a GPU every test is skipped, for one reason."""

import pytest
import torch


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: these tests need a GPU")
