"""The time of a step: what GPUs send, what overlaps with computing, and what is named as the bottleneck."""

import math

import pytest

from benchmarks.scaling import paper_model, rows_batch
from train.cost import count
from train.step_time import SHEETS, Machine, largest_batch, messages, reached, step_time


H100 = reached(SHEETS["h100"])


@pytest.fixture(scope="module")
def model():
    return paper_model("llama-3.2-3b", "stage2")


def time_of(model, machine=H100, **settings):
    return step_time(model, rows_batch(2, "stage2"), machine, checkpointing=True, **settings)


def test_each_engine_sends_what_its_algorithm_needs(model):
    trained, everything = count(model), sum(p.numel() for p in model.parameters())
    assert messages(model, "ddp", 2) == (0, 4 * trained)  # half of an all-reduce of float32
    assert messages(model, "fsdp2", 2) == (pytest.approx(2 * everything + 2 * trained), 0)
    assert messages(model, "zero2", 2) == (trained, trained)
    assert messages(model, "zero3", 2) == (pytest.approx(2 * everything + trained), 0)


def test_one_gpu_sends_nothing_and_more_rows_take_longer(model):
    one = time_of(model)
    assert one.communication == 0 and one.bottleneck == "memory traffic"  # Adam's, for two rows
    two = time_of(model, micro_batches=2)
    assert two.computing == 2 * one.computing and one.traffic < two.traffic < 2 * one.traffic  # one update
    assert time_of(model, micro_batches=64).bottleneck == "computing"


def test_the_slowest_part_is_named(model):
    assert time_of(model, images_per_second=1.0).bottleneck == "opening images"
    assert time_of(model, images_per_second=1.0).seconds == 2.0
    slow = Machine(H100.memory, H100.matmul, H100.bandwidth, link=1e9, network=1e9)
    assert time_of(model, slow, engine="fsdp2", processes=8).bottleneck == "communication"
    assert time_of(model, Machine(math.inf, math.inf, 1e12)).bottleneck == "memory traffic"


def test_communication_hides_behind_computing_except_a_tenth(model):
    fast = time_of(model, engine="fsdp2", processes=8)
    (sent, _) = messages(model, "fsdp2", 8)
    assert 0.1 * sent / H100.link < fast.communication < sent / H100.link
    across = time_of(model, engine="fsdp2", processes=64)
    assert across.communication > fast.communication


def test_the_largest_batch_fits_and_its_double_does_not(model):
    row, settings = rows_batch(1, "stage2"), {"engine": "one", "processes": 1, "checkpointing": True}
    fits = largest_batch(model, row, H100, 128, **settings)
    assert 1 < fits < 128 and fits.bit_count() == 1
    assert largest_batch(model, row, H100, fits // 2, **settings) == fits // 2
    assert largest_batch(model, row, Machine(1e9, 1, 1), 128, **settings) == 0
