"""Library functions that return futures: run where they are first asked, once, and cancelled with who asks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from roost.actors.errors import CallCancelled, CallTimeout
from roost.actors.policy import Policy, policy, set_policy
from roost.actors.returns_future import returns_future
from roost.mesh.gather import all_of

WAIT = 10.0
where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


class Log:
    """What bodies have done."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.cancelled = threading.Event()


@pytest.fixture
def log() -> Log:
    return Log()


@returns_future
async def work(log: Log, value: Any = 1, seconds: float = 0.0) -> Any:
    log.began.append(threading.current_thread())
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        log.cancelled.set()
        raise
    if isinstance(value, Exception):
        raise value
    return value, where.get()


@pytest.fixture(params=[True, False], ids=["timeouts cancel", "timeouts leave"])
def either_policy(request: pytest.FixtureRequest) -> Iterator[None]:
    before = policy()
    set_policy(Policy(timeout_cancels=request.param))
    yield
    set_policy(before)


def test_the_body_runs_in_the_thread_that_asks_and_once(log: Log) -> None:
    where.set("here")
    future = work(log, 3)
    assert not future.done()
    assert not log.began, "nothing runs before somebody asks"
    assert [future.get(WAIT), future.get(WAIT)] == [(3, "here")] * 2
    assert log.began == [threading.current_thread()]


def test_awaited_it_is_a_task_of_that_loop(log: Log) -> None:
    async def main() -> list[Any]:
        where.set("loop")
        future = work(log, 3, 0.001)
        return [await future, await future, future.get(WAIT)]

    assert asyncio.run(main()) == [(3, "loop")] * 3
    assert log.began == [threading.current_thread()]


def test_get_in_a_running_loop_does_not_need_that_loop(log: Log) -> None:
    async def main() -> Any:
        return work(log, 4, 0.001).get(WAIT)

    assert asyncio.run(main())[0] == 4
    assert log.began != [threading.current_thread()]


def test_several_ask_one_runs(log: Log) -> None:
    future = work(log, 5, 0.05)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(future.get(WAIT)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert found == [5] * 4
    assert len(log.began) == 1


def test_callbacks_and_futures_of_futures_start_it(log: Log) -> None:
    came = threading.Event()
    work(log, 1).add_done_callback(lambda future: came.set())
    assert came.wait(WAIT)
    assert all_of([work(log, 1), work(log, 2)], make=lambda values: [value for value, _ in values]).get(WAIT) == [1, 2]


def test_what_it_raises_is_raised_to_all_who_ask(log: Log) -> None:
    future = work(log, ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            future.get(WAIT)


@pytest.mark.usefixtures("either_policy")
def test_a_timeout_cancels_the_body(log: Log) -> None:
    future = work(log, 1, 60.0)
    with pytest.raises(CallTimeout, match=r"work did not end within 0\.02 s"):
        future.get(timeout=0.02)
    assert log.cancelled.wait(WAIT)
    with pytest.raises(CallTimeout):
        future.get(WAIT)


def test_the_cancellation_of_who_awaits_cancels_the_body(log: Log) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(log, 1, 60.0), 0.02)
        while not log.cancelled.is_set():
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_cancel_before_it_began_runs_nothing_and_while_it_runs_stops_it(log: Log) -> None:
    never = work(log)
    assert never.cancel()
    with pytest.raises(CallCancelled):
        never.get(WAIT)
    assert not log.began
    running = work(log, 1, 60.0)
    thread = threading.Thread(target=running.exception)
    thread.start()
    while not log.began:
        threading.Event().wait(0.001)
    running.cancel()
    thread.join(WAIT)
    assert log.cancelled.wait(WAIT)


def test_arguments_are_checked_at_the_call() -> None:
    with pytest.raises(TypeError, match=r"work\(log"):
        work()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="async def"):
        returns_future(len)  # type: ignore[type-var]


def test_tasks_that_the_body_leaves_are_cancelled(log: Log) -> None:
    @returns_future
    async def start() -> int:
        task = work(log, 1, 60.0).as_asyncio()
        await asyncio.sleep(0.01)
        return int(not task.done())

    assert start().get(WAIT) == 1
    assert log.cancelled.wait(WAIT)
