"""Micro-batches by tokens: what they hold, that they leave a step as it is, and what is chosen for a device."""

import numpy as np
import pytest
import torch
from transformers.modeling_layers import GradientCheckpointingLayer
from trl.trainer.utils import selective_log_softmax

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests.one_line import one_line
from tests.paper_models import paper_model
from tests.train.stage_results import interrupted_after, lines, weights
from train import step_plan
from train.cost import SPARE, Batch, memory
from train.monitoring.log import LossLog
from train.optimization.sampler import LengthGroupedSampler, MicroBatchSampler, micro_batches
from train.stage import run_stage


def lognormal(count: int) -> np.ndarray:
    return (735 + np.exp(np.random.default_rng(0).normal(4.5, 0.8, count))).astype(int)


def sampler(lengths, budget, *, step=32, epochs=1, processes=1, rank=0, drop_last=False):
    rows = LengthGroupedSampler(lengths, step, seed=1, drop_last=drop_last, mixed=True)
    return MicroBatchSampler(rows, budget, epochs, processes, rank)


def steps_of(batches):
    chunks = list(batches)
    return [
        [row for chunk in chunks[k : k + batches.per_step] for row in chunk]
        for k in range(0, len(chunks), batches.per_step)
    ]


def test_every_row_is_in_one_micro_batch_below_the_budget_with_little_padding():
    lengths = lognormal(320)
    batches = sampler(lengths, 8192)
    chunks = list(batches)
    assert sorted(row for chunk in chunks for row in chunk) == list(range(320))
    assert max(len(chunk) * lengths[chunk].max() for chunk in chunks) <= 8192
    assert len(chunks) == len(batches) == 10 * batches.per_step
    assert len({len(chunk) for chunk in chunks}) > 1  # numbers of rows vary
    padded = sum(len(chunk) * int(lengths[chunk].max()) for chunk in chunks)
    assert batches.padding() == 1 - lengths.sum() / padded < 0.05


def test_steps_are_random_rows_and_the_longest_comes_first():
    lengths = lognormal(320)
    batches = sampler(lengths, 8192)
    steps = steps_of(batches)
    means = [lengths[step].mean() for step in steps]
    assert max(means) / min(means) < 1.2 and lengths.argmax() in steps[0]
    batches.set_epoch(1)
    assert not {frozenset(step) for step in steps[1:]} & {frozenset(step) for step in steps_of(batches)}


def test_all_epochs_fit_into_as_many_micro_batches():
    lengths = np.array([100] * 28 + [900] * 4)
    for epochs in (1, 5):
        batches = sampler(lengths, 1000, step=8, epochs=epochs)
        for epoch in range(epochs):
            batches.set_epoch(epoch)
            assert all(len(chunk) * lengths[chunk].max() <= 1000 for chunk in batches)


@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_share_a_step_in_equally_many_micro_batches_of_like_cost(drop_last):
    lengths = lognormal(99)  # three steps, and three rows
    shares = [list(sampler(lengths, 4096, processes=4, rank=rank, drop_last=drop_last)) for rank in range(4)]
    assert len({len(share) for share in shares}) == 1
    seen = [row for share in shares for chunk in share for row in chunk]
    full = [row for row in seen if seen.count(row) == 1]
    assert len(full) == 96 if drop_last else set(seen) == set(range(99)) and len(seen) == 100  # one is repeated
    for chunks in list(zip(*shares, strict=True))[:6]:
        costs = [len(chunk) * lengths[chunk].max() for chunk in chunks]
        assert max(costs) <= 1.5 * min(costs)


def test_the_largest_micro_batch_is_as_small_as_it_can_be():
    assert micro_batches([0, 1, 2, 3, 4], [8, 4, 4, 2, 2], 3) == [[1, 2], [0], [3, 4]]
    assert [len(chunk) for chunk in micro_batches([0, 1, 2, 3], [5, 5, 5, 5], 3)] == [2, 1, 1]


def test_budgets_that_cannot_be_kept_are_one_line():
    with one_line("^micro_batch_tokens: 800 is below the longest row, of 900 tokens: raise it, or lower max_length$"):
        sampler([100, 900], 800, step=2)
    with one_line("needs 2 micro-batches on each of 2 processes, more than a step has rows"):
        sampler([900, 900, 900], 900, step=3, processes=2)


def gradients(model, rows, chunks):
    """Of the mean loss over all labels, summed over micro-batches that are padded on the right."""
    model.zero_grad()
    total = sum(len(row) - 1 for row in rows)
    for chunk in chunks:
        longest = max(len(rows[i]) for i in chunk)
        ids = torch.tensor([rows[i] + [0] * (longest - len(rows[i])) for i in chunk])
        mask = torch.tensor([[1] * len(rows[i]) + [0] * (longest - len(rows[i])) for i in chunk])
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        chosen = selective_log_softmax(logits, ids[:, 1:])
        (-(chosen * mask[:, 1:]).sum() / total).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_gradients_are_those_of_one_row_at_a_time(tiny_checkpoint):
    model = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("norm-gwc"), dtype=torch.float64)
    numbers = np.random.default_rng(0)
    rows = [numbers.integers(5, 60, length).tolist() for length in numbers.integers(4, 40, 12)]
    (step,) = [list(sampler([len(row) for row in rows], 90, step=12))]
    assert len(step) > 2 and max(map(len, step)) > 1
    alone = gradients(model, rows, [[i] for i in range(12)])
    for name, gradient in gradients(model, rows, step).items():
        torch.testing.assert_close(gradient, alone[name], rtol=1e-9, atol=1e-12, msg=name)


BY_ROWS = {"train_sampling_strategy": "sequential", "max_steps": 2, "per_device_train_batch_size": 1}
BY_TOKENS = {**BY_ROWS, "per_device_train_batch_size": 0, "micro_batch_tokens": 200}


@pytest.mark.parametrize("stage", [1, 2])
def test_steps_by_tokens_are_those_by_rows(train_stage, tmp_path, capsys, stage):
    rows = train_stage(tmp_path / "rows", stage, **BY_ROWS)
    capsys.readouterr()
    tokens = train_stage(tmp_path / "tokens", stage, **BY_TOKENS)
    assert "micro-batches of at most 200 tokens" in capsys.readouterr().out
    for one, other in zip(lines(rows), lines(tokens), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    expected = weights(rows)
    for name, tensor in weights(tokens).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-5, msg=name)


def test_a_run_by_tokens_goes_on_with_another_budget_but_not_by_rows(train_stage, tmp_path):
    given = {"micro_batch_tokens": 96, "per_device_train_batch_size": 0}
    straight = weights(train_stage(tmp_path / "straight", 1, **given))
    with interrupted_after(4):
        train_stage(tmp_path / "stopped", 1, **given)
    with one_line("started with other settings .steps_share_lengths was False, is None"):
        train_stage(tmp_path / "stopped", 1)
    resumed = weights(train_stage(tmp_path / "stopped", 1, **given | {"micro_batch_tokens": 200}))
    for name, tensor in straight.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=1e-4, msg=name)


GB = 1e9


@pytest.mark.parametrize(
    ("stage", "device", "expected"),
    [  # GB of the device -> tokens, every how many layers one is computed again
        ("stage1", 80, (8192, 0)),
        ("stage2", 141, (8192, 0)),
        ("stage2", 110, (8192, 4)),
        ("stage2", 96, (8192, 1)),
        ("stage2", 80, (5100, 1)),
    ],
)
def test_what_fits_the_papers_smaller_pair_on_one_gpu(stage, device, expected):
    """The tokens of a smaller GPU are arithmetic of `train.cost.memory`, not measured."""
    model = paper_model("llama-3.2-3b", stage)
    how = {"engine": "one", "processes": 1, "bf16": True}
    tokens, every = step_plan.fitting(model, 1200, 8192, None, None, device * GB, **how)
    assert (tokens, every) == expected
    need = memory(model, Batch(1, tokens, tokens / 729), checkpointing=every, **how).total
    assert need <= step_plan.SHARE * device * GB - SPARE


def test_what_the_user_fixes_stays_and_the_longest_row_is_held():
    model = paper_model("llama-3.2-3b", "stage2")
    how = {"engine": "one", "processes": 1, "bf16": True}
    assert step_plan.fitting(model, 1200, 8192, 3000, None, 80 * GB, **how) == (3000, 1)
    assert step_plan.fitting(model, 1200, 8192, 3000, 0, 80 * GB, **how) == (
        3000,
        0,
    )  # it may run out of memory, and says so
    assert step_plan.fitting(model, 9000, 8192, None, None, 20 * GB, **how) == (9000, 1)


def test_layers_are_computed_again_as_the_plan_says(train_stage, tmp_path, monkeypatch):
    monkeypatch.setattr(step_plan, "fitting", lambda *_, **__: (96, 2))
    flags = []

    def look(self, args, state, control, model=None, **kwargs):
        flags[:] = [m.gradient_checkpointing for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]

    monkeypatch.setattr(LossLog, "on_step_begin", look, raising=False)
    given = {"micro_batch_tokens": "auto", "per_device_train_batch_size": 0, "gradient_checkpointing": "auto"}
    train_stage(tmp_path, 1, max_steps=1, **given)
    assert flags == [n % 2 == 0 for n in range(len(flags))] and len(flags) > 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"micro_batch_tokens": 5, "per_device_train_batch_size": 0},
            "micro_batch_tokens: 5 is below the longest row",
        ),
        ({"micro_batch_tokens": "many"}, "micro_batch_tokens must be a whole number or auto, not 'many'"),
        (
            {"micro_batch_tokens": 512},
            "micro_batch_tokens and per_device_train_batch_size both cut a step: set one to 0",
        ),
        (
            {
                "micro_batch_tokens": 512,
                "per_device_train_batch_size": 0,
                "train_sampling_strategy": "batch_rebalance",
            },
            "batch_rebalance does what micro_batch_tokens does: drop one",
        ),
    ],
)
def test_wrong_settings_are_one_line(stage_arguments, tmp_path, settings, message):
    with one_line(message):
        run_stage(stage_arguments(1, "norm", tmp_path, **settings))
