"""Steps: their order, and what a failure stops."""

import time
from functools import partial
from graphlib import CycleError

import pytest

from eval.engine.pool import open_pool
from eval.engine.steps import Step, path_lengths, run_steps
from modeling_aligned_llava.errors import UserError


def say(*events):
    yield from events


def run(steps, pool):
    """Whether all succeeded, the events, and the failures."""
    events, failures = [], {}
    ok = run_steps(steps, pool, lambda name, event: events.append((name, event)), failures.__setitem__)
    return ok, events, failures


def test_the_longest_path_goes_first_and_nothing_before_what_it_needs(pool):
    steps = [
        Step("alone", partial(say, "first", "second"), 5),
        Step("b", partial(say, "b"), 3, after=("a",)),
        Step("a", partial(say, "a"), 4),
        Step("c", partial(say, "c"), 1, after=("a", "alone")),
    ]
    assert path_lengths(steps) == {"alone": 6, "b": 3, "a": 7, "c": 1}
    ok, events, failures = run(steps, open_pool(1, "cpu"))
    assert ok and not failures
    assert events == [("a", "a"), ("alone", "first"), ("alone", "second"), ("b", "b"), ("c", "c")]


def test_steps_that_wait_for_each_other_are_refused():
    with pytest.raises(CycleError):
        path_lengths([Step("a", say, 1, ("b",)), Step("b", say, 1, ("a",))])


def test_as_many_steps_run_side_by_side_as_there_are_slots(pool, tmp_path):
    def meet(own, other):
        (tmp_path / own).touch()
        while not (tmp_path / other).exists():
            time.sleep(0.01)
        yield own

    ok, events, _ = run([Step("a", partial(meet, "a", "b"), 1), Step("b", partial(meet, "b", "a"), 1)], pool)
    assert ok and len(events) == 2 == pool.slots()


def test_a_failure_stops_what_depends_on_it_and_nothing_else(pool):
    def broken():
        yield "begun"
        raise UserError("no such thing")

    def wrong():
        yield {}["key"]

    steps = [
        Step("broken", broken, 1),
        Step("next", say, 1, after=("broken",)),
        Step("last", say, 1, after=("next",)),
        Step("wrong", wrong, 1),
        Step("other", partial(say, "done"), 0.1),
    ]
    ok, events, failures = run(steps, pool)
    assert not ok and ("other", "done") in events and ("broken", "begun") in events
    assert failures == {
        "broken": "no such thing",
        "wrong": "KeyError: 'key'",
        "next": "not run, because broken failed",
        "last": "not run, because next failed",
    }


def test_an_error_while_watching_cancels_the_running_steps(pool, tmp_path):
    def endless():
        try:
            while True:
                yield "tick"
                time.sleep(0.05)
        finally:
            (tmp_path / "cleaned up").touch()

    def watch(name, event):
        raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        run_steps([Step("endless", endless, 1)], pool, watch, print)
    assert (tmp_path / "cleaned up").exists()
