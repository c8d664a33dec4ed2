"""Run steps with dependencies, the longest path first. A step that fails stops those that need it, and no other."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from queue import SimpleQueue
from threading import Thread
from typing import Any

from eval.engine.child import GRACE, Slot, in_slot
from eval.engine.pool import Pool
from modeling_aligned_llava.errors import UserError


Event = tuple[Any, ...]
News = SimpleQueue[tuple[str, bool, Any]]  # of a step: True and an event, or False and its error, None at a good end


@dataclass(frozen=True)
class Step:
    """Resumable work for one core or GPU.

    Attributes:
        name: unique; `after` refers to it.
        work: called in a thread. It yields events, and continues when started again; what takes long is a command.
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
    by_name, lengths = {step.name: step for step in steps}, path_lengths(steps)
    graph: TopologicalSorter[str] = TopologicalSorter({step.name: step.after for step in steps})
    graph.prepare()
    ready, done = list(graph.get_ready()), set[str]()
    free, running = [Slot(device) for device in pool.devices], dict[str, tuple[Slot, Thread]]()
    news: News = SimpleQueue()
    try:
        while ready or running:
            ready.sort(key=lambda name: -lengths[name])  # stable: equal ones in the order given
            while ready and free:
                name, slot = ready.pop(0), free.pop(0)
                thread = Thread(target=_follow, args=(by_name[name], slot, news), daemon=True)
                running[name] = slot, thread
                thread.start()
            name, going_on, heard = news.get()
            if going_on:
                watch(name, heard)
                continue
            free.append(running.pop(name)[0])
            if heard is None:
                done.add(name)
                graph.done(name)
                ready += graph.get_ready()
            else:
                fail(name, in_one_line(heard))
    except BaseException:
        for slot, _ in running.values():
            slot.cancelled.set()
        for _, thread in running.values():
            thread.join(GRACE + 2)
        raise
    for step in steps:
        if missing := [name for name in step.after if name not in done]:
            fail(step.name, f"not run, because {missing[0]} failed")
    return len(done) == len(steps)


def _follow(step: Step, slot: Slot, news: News) -> None:
    """Pass on what a step yields, then its error or None."""
    error = None
    with in_slot(slot):
        try:
            events: Any = step.work()
            for event in events:
                if slot.cancelled.is_set():
                    events.close()
                    break
                news.put((step.name, True, event))
        except BaseException as raised:
            error = raised
    news.put((step.name, False, error))


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
