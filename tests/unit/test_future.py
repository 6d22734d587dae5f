"""The future alone, without any process: who waits, who is told, and that it is complete once."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest
import uvloop

from roost.actors.errors import CallCancelled, CallTimeout
from roost.actors.future import Future

WAIT = 20.0
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Asked(Future[Any]):
    """Counts what a subclass is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.cancellations: list[str] = []
        self.decoded: list[int] = []

    def _about(self) -> str:
        return "trainer.step"

    def _decode(self, raw: Any) -> Any:
        self.decoded.append(threading.get_ident())
        if isinstance(raw, Exception):
            raise raw
        return raw * 2

    def _cancel_remote(self, reason: str) -> None:
        self.cancellations.append(reason)


class Failure:
    """Stands in for a failure that a future will raise."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def delivered(self) -> None:
        self.events.append("delivered")

    def dropped(self) -> None:
        self.events.append("dropped")


def test_a_completed_future_gives_its_value_again_and_again() -> None:
    future = Future.completed(3)
    assert (future.get(), future.result(0), future.exception(), future.done(), future.cancelled()) == (
        3,
        3,
        None,
        True,
        False,
    )
    assert repr(future) == "<Future: done>"


def test_a_failed_future_raises_the_same_again_and_again() -> None:
    error = ValueError("x")
    future = Future[Any].failed(error)
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            future.get()
    assert future.exception() is error and repr(future) == "<Future: failed>"


def test_a_future_is_completed_once() -> None:
    future = Future[int]()
    assert future.set_result(1) is True
    assert future.set_result(2) is False and future.set_exception(ValueError()) is False and future.cancel() is False
    assert future.get() == 1


def test_what_arrived_is_decoded_once_by_whoever_asks_first() -> None:
    future = Asked()
    threading.Thread(target=future.set_raw, args=(4,)).start()
    assert future.get(WAIT) == 8 and future.get() == 8
    assert future.decoded == [threading.get_ident()]


def test_an_error_of_decoding_is_the_result() -> None:
    future = Asked()
    future.set_raw(LookupError("gone"))
    for _ in range(2):
        with pytest.raises(LookupError):
            future.get()
    assert len(future.decoded) == 1


def test_a_get_whose_time_has_passed_cancels_and_says_so() -> None:
    future = Asked()
    with pytest.raises(CallTimeout, match=r"trainer\.step gave no answer within 0\.01 s and was cancelled"):
        future.get(timeout=0.01)
    assert future.cancelled() and future.cancellations == ["timed out at the caller"]
    assert future.set_raw(1) is False, "an answer that comes late changes nothing"
    with pytest.raises(CallTimeout):
        future.get()


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_at_all_is_a_question_whether_it_is_done(timeout: float) -> None:
    assert Future.completed(1).get(timeout) == 1
    with pytest.raises(TimeoutError):
        Future[int]().get(timeout)


def test_cancel_completes_at_once_and_tells_the_actors_once() -> None:
    future = Asked()
    assert future.cancel("no longer wanted") is True and future.cancel() is False
    assert future.done() and future.cancelled() and future.cancellations == ["no longer wanted"]
    with pytest.raises(CallCancelled, match=r"trainer\.step: no longer wanted"):
        future.get()


def test_every_thread_that_waits_is_woken() -> None:
    future = Future[str]()
    answers: list[str] = []
    ready = threading.Barrier(5)

    def wait() -> None:
        ready.wait(WAIT)
        answers.append(future.get(WAIT))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(WAIT)
    future.set_result("x")
    for thread in threads:
        thread.join(WAIT)
    assert answers == ["x"] * 4


def test_one_that_gives_up_waiting_leaves_the_others() -> None:
    future = Future[int]()
    seen: list[Any] = []
    assert future._when_done(lambda: seen.append("kept"))
    wake = lambda: seen.append("forgotten")  # noqa: E731
    future._when_done(wake)
    future._forget(wake)
    future.set_result(1)
    assert seen == ["kept"]
    assert future._when_done(wake) is False, "it is complete: nobody will be called"


@pytest.mark.parametrize("loop", LOOPS)
def test_it_is_awaited_before_and_after_it_is_done(loop: Any) -> None:
    async def main() -> None:
        future = Asked()
        waiting = [asyncio.ensure_future(future.as_asyncio()) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=future.set_raw, args=(21,)).start()
        assert await asyncio.gather(*waiting) == [42] * 3
        assert await future == 42
        with pytest.raises(ZeroDivisionError):
            await Future[Any].failed(ZeroDivisionError())

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_the_cancelled_task_of_an_awaiter_cancels_it() -> None:
    async def main() -> None:
        future = Asked()
        task = future.as_asyncio()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled() and future.cancellations == ["the task that awaited it was cancelled"]

    asyncio.run(main())


def test_completing_after_the_awaiters_loop_has_closed_does_no_harm() -> None:
    future = Future[int]()
    waiting: list[asyncio.Task[int]] = []

    async def main() -> None:
        waiting.append(future.as_asyncio())
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    pending = asyncio.all_tasks(loop)
    loop.close()
    assert future.set_result(1) is True
    for task in pending:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()  # type: ignore[union-attr]


def test_callbacks_run_in_order_on_one_thread_that_is_not_the_completing_one() -> None:
    future = Future[int]()
    threads: list[tuple[int, str]] = []
    ended = threading.Event()
    for i in range(3):
        future.add_done_callback(lambda f, i=i: threads.append((i, threading.current_thread().name)))  # type: ignore[misc]
    future.add_done_callback(lambda f: ended.set())
    future.set_result(1)
    assert ended.wait(WAIT)
    assert threads == [(i, "roost-callbacks") for i in range(3)]


def test_a_failure_counts_as_seen_only_when_it_is_raised() -> None:
    failure = Failure()
    future = Future[int]()
    future._failure = failure
    future.set_exception(ValueError("v"))
    assert future.done() and failure.events == []
    assert isinstance(future.exception(), ValueError)
    assert failure.events == ["delivered"]
    del future
    gc.collect()
    assert failure.events == ["delivered", "dropped"]


def test_a_failure_that_nobody_asked_for_is_dropped_with_its_future() -> None:
    failure = Failure()
    future = Future[int]()
    future._failure = failure
    future.set_exception(ValueError("v"))
    del future
    gc.collect()
    assert failure.events == ["dropped"]


def test_waiting_without_a_timeout_takes_no_time_of_its_own() -> None:
    future = Future[int]()
    threading.Timer(0.05, future.set_result, (5,)).start()
    begin = time.thread_time()
    assert future.get() == 5
    assert time.thread_time() - begin < 0.04, "it sleeps"
