"""The size of batches follows the memory that is free; out of memory halves a batch."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from modeling_aligned_llava.inference import memory
from modeling_aligned_llava.inference.memory import Budget, budget, cache_bytes, halving, pass_bytes
from modeling_aligned_llava.inference.prefix_plan import Segment, pack


QWEN_3B = Qwen2Config(
    vocab_size=151_936,
    hidden_size=2048,
    intermediate_size=11_008,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=2,
)
GIB = 2**30


class Stub:
    def __init__(self, config, device):
        self.config, self.dtype, self.device = config, torch.bfloat16, torch.device(device)


def test_a_cached_token_takes_its_keys_and_values(tiny_backbones):
    model = AutoModelForCausalLM.from_pretrained(tiny_backbones.qwen2)
    cache = model(torch.tensor([[5, 6, 7]])).past_key_values
    measured = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
    assert cache_bytes(model.config, model.dtype) == measured / 3


@pytest.mark.parametrize("free", [4, 20, 60])
def test_a_gpu_is_filled_but_not_overfilled(monkeypatch, free):
    monkeypatch.setattr(memory, "free_bytes", lambda device: free * GIB)
    limits = budget(Stub(QWEN_3B, "cuda"))
    cache = limits.tokens * cache_bytes(QWEN_3B, torch.bfloat16)
    one_pass = limits.tokens_per_pass * pass_bytes(QWEN_3B, torch.bfloat16, limits.tokens)
    assert free * GIB / 4 <= cache <= free * GIB / 2 and one_pass <= free * GIB / 4
    assert limits.tokens_per_pass > 1024 or free == 4
    if free == 60:  # 64 questions of 2,000 tokens, which a fixed 16,384 tokens put into batches of eight
        assert len(pack([Segment((row,), 0) for row in range(64)], [2000] * 64, 64, limits.tokens)) == 1


def test_a_cpu_takes_what_keeps_it_busy_or_what_fits(monkeypatch):
    model = Stub(QWEN_3B, "cpu")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 64 * GIB)
    assert budget(model) == Budget(16_384, 1_024)
    monkeypatch.setattr(memory, "free_bytes", lambda device: GIB // 4)
    small = budget(model)
    assert small.tokens < 16_384 and small.tokens_per_pass < 1_024


def test_padded_rows_take_what_the_longest_takes():
    alone = [Segment((row,), 0) for row in range(4)]
    assert pack(alone, [10, 4, 4, 4], 4, 30, padded=True) == [alone[:3], alone[3:]]
    assert pack(alone, [10, 4, 4, 4], 4, 30) == [alone]


BATCH = [Segment((0, 1, 2, 3, 4), 7), Segment((5,), 0), Segment((6, 7), 3)]


def gpu_is_full():
    raise torch.OutOfMemoryError("CUDA out of memory")


def cpu_is_full():
    torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize("fail", [gpu_is_full, cpu_is_full])
@pytest.mark.parametrize("fits", [1, 2, 5, 8])
def test_out_of_memory_halves_the_batch(fits, fail):
    passes, released = [], []

    def answer(batch):
        rows = [row for segment in batch for row in segment.rows]
        passes.append(rows)
        if len(rows) > fits:
            fail()
        assert all(segment.shared == 0 or len(segment.rows) > 1 for segment in batch)
        return rows

    assert halving(answer, BATCH, lambda: released.append(1)) == list(range(8))
    assert len(released) == sum(len(rows) > fits for rows in passes)


@pytest.mark.parametrize(("fail", "named"), [(gpu_is_full, "CUDA out of memory"), (cpu_is_full, "allocate memory")])
def test_a_row_that_does_not_fit_is_an_error(fail, named):
    with pytest.raises(RuntimeError, match=named) as caught:
        halving(lambda batch: fail(), BATCH, lambda: None)
    assert isinstance(caught.value, torch.OutOfMemoryError) == (fail is gpu_is_full)


def test_another_error_of_pytorch_is_not_taken_for_it():
    passes = []

    def answer(batch):
        passes.append(batch)
        return torch.zeros(2) + torch.zeros(3)

    with pytest.raises(RuntimeError, match="must match the size"):
        halving(answer, BATCH, lambda: None)
    assert passes == [BATCH]
