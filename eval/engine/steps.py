"""Run steps with dependencies, the longest path first. A step that fails stops those that need it, and no other."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from eval.engine.pool import Pool
from modeling_aligned_llava.errors import UserError


STARTS = 3  # of a step whose machine or process was lost
Event = tuple[Any, ...]


@dataclass(frozen=True)
class Step:
    """Resumable work for one core or GPU.

    Attributes:
        name: unique; `after` refers to it.
        work: is pickled and called on any machine of the pool. It yields events, and continues when started again.
        cost: its duration relative to other steps, which only affects the order.
        after: names of the steps that must succeed first.
    """

    name: str
    work: Callable[[], Iterator[Event]]
    cost: float
    after: tuple[str, ...] = ()


def run_steps(
    steps: Sequence[Step],
    pool: Pool,
    watch: Callable[[str, Event], object],
    fail: Callable[[str, str], object],
) -> bool:
    """Run the steps.

    An exception, from a callback or a signal handler, cancels the running steps and is raised.

    Args:
        watch: called with the name of a step and each event that it yields.
        fail: called with the name of a step that failed, or that waited for one, and the reason in one line.

    Returns:
        Whether all succeeded.
    """
    import ray

    by_name, lengths = {step.name: step for step in steps}, path_lengths(steps)
    graph: TopologicalSorter[str] = TopologicalSorter({step.name: step.after for step in steps})
    graph.prepare()
    ready, done = list(graph.get_ready()), set[str]()
    running: dict[ray.ObjectRefGenerator, str] = {}
    starts: Counter[str] = Counter()
    try:
        while ready or running:
            ready.sort(key=lambda name: -lengths[name])  # stable: equal ones in the order given
            while ready and len(running) < pool.slots():
                name = ready.pop(0)
                starts[name] += 1
                running[pool.start(by_name[name].work, name)] = name
            if not running:
                time.sleep(1)  # a cluster without a machine may get one
                continue
            heard: list[Any] = ray.wait(list(running), num_returns=1, timeout=1)[0]  # type: ignore[arg-type]  # streams too
            for stream in heard:
                name = running[stream]
                try:
                    watch(name, ray.get(next(stream)))
                    continue
                except StopIteration:
                    done.add(name)
                    graph.done(name)
                    ready += graph.get_ready()
                except ray.exceptions.RayTaskError as error:
                    fail(name, in_one_line(error.cause))
                except ray.exceptions.RayError as error:
                    if starts[name] < STARTS:
                        ready.append(name)
                    else:
                        fail(name, f"lost {STARTS} times: {in_one_line(error)}")
                del running[stream]
    except BaseException:
        pool.stop(running)
        raise
    for step in steps:
        if missing := [name for name in step.after if name not in done]:
            fail(step.name, f"not run, because {missing[0]} failed")
    return len(done) == len(steps)


def path_lengths(steps: Sequence[Step]) -> dict[str, float]:
    """The cost of each step plus that of the longest chain of steps that wait for it.

    Raises:
        graphlib.CycleError: steps wait for each other.
    """
    costs = {step.name: step.cost for step in steps}
    ahead: defaultdict[str, float] = defaultdict(float)
    lengths = {}
    waits_for = {step.name: step.after for step in steps}
    for name in reversed(list(TopologicalSorter(waits_for).static_order())):
        lengths[name] = costs[name] + ahead[name]
        for earlier in waits_for[name]:
            ahead[earlier] = max(ahead[earlier], lengths[name])
    return lengths


def in_one_line(error: BaseException) -> str:
    """What an exception says, with its type unless it is meant for a user."""
    first = next(iter(str(error).strip().splitlines()), "")
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
