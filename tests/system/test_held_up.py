"""What holds an actor up says so and ends in time: batches that wait for more calls, streams whose callers take
nothing, generators that fail as they are closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from roost.actors import Actor, CallTimeout, Channel, endpoint
from roost.mesh.agent.dumps import readable

WAIT = 15.0
SOON = 8.0  # seconds; far less than the minute that the batches of these tests may wait

pytestmark = pytest.mark.usefixtures("reported")


class Patient(Actor, lanes={"one": 1}):
    """Its batches wait for a minute."""

    @endpoint(batch=2, batch_wait=60.0)
    def pair(self, items: list[int]) -> list[int]:
        return items

    @endpoint(batch=2, batch_wait=60.0, lane="one")
    def lane_pair(self, items: list[int]) -> list[int]:
        return items

    @endpoint
    def other(self) -> str:
        return "other"

    @endpoint(lane="one")
    def lane_other(self) -> str:
        return "other"


class AsyncPatient(Actor, lanes={"one": 1}):
    """The same with a loop."""

    @endpoint(batch=2, batch_wait=60.0)
    async def pair(self, items: list[int]) -> list[int]:
        return items

    @endpoint(batch=2, batch_wait=60.0, lane="one")
    async def lane_pair(self, items: list[int]) -> list[int]:
        return items

    @endpoint
    async def other(self) -> str:
        return "other"

    @endpoint(lane="one")
    async def lane_other(self) -> str:
        return "other"


PATIENT = pytest.mark.parametrize("Class", [Patient, AsyncPatient])
LINES = pytest.mark.parametrize("line", ["", "lane_"])


@pytest.fixture
def patient(spawn: Any, Class: type) -> Any:
    actor = spawn(Class, n=1)
    actor.initialized.get(timeout=WAIT)
    return actor


@PATIENT
@LINES
def test_a_batch_waits_for_no_more_calls_once_another_message_waits_behind_it(patient: Any, line: str) -> None:
    first = getattr(patient, f"{line}pair").call_one(1)
    assert getattr(patient, f"{line}other").call_one().get(timeout=SOON) == "other"
    assert first.get(timeout=SOON) == 1
    assert [f.get(timeout=SOON) for f in [getattr(patient, f"{line}pair").call_one(i) for i in (2, 3)]] == [2, 3]


@PATIENT
@LINES
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_batch_that_nobody_wants_any_more_does_not_wait(patient: Any, line: str, how: str) -> None:
    pair = getattr(patient, f"{line}pair")
    gone = pair.options(timeout=0.3 if how == "deadline" else None).call_one(1)
    if how == "cancel":
        gone.cancel()
    else:
        with pytest.raises(CallTimeout):
            gone.get(timeout=WAIT)
    while patient.statistics().get(timeout=WAIT).item(gpus=0)["running"]:
        time.sleep(0.001)
    assert [f.get(timeout=SOON) for f in [pair.call_one(i) for i in (2, 3)]] == [2, 3], "the cancelled one is not in it"


@PATIENT
@LINES
def test_a_batch_that_waits_does_not_hold_up_the_end_of_its_actor(patient: Any, line: str) -> None:
    waits = getattr(patient, f"{line}pair").call_one(1)
    patient.stop().get(timeout=SOON)
    assert waits.get(timeout=SOON) == 1


class Telling(Actor):
    """Its generators fail as they are closed; what is logged here is sent to a port."""

    @endpoint
    def listen(self, port: Any) -> None:
        class Sends(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                port.send((record.levelname, record.getMessage()))

        logging.getLogger("roost.actors").addHandler(Sends())

    @endpoint
    def items(self) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            raise ValueError("the file is gone")

    @endpoint
    async def async_items(self) -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
        finally:
            raise ValueError("the file is gone")

    @endpoint
    def count(self) -> Iterator[int]:
        yield from range(1000)

    @endpoint
    async def async_count(self) -> AsyncIterator[int]:
        for number in range(1000):
            yield number

    @endpoint
    async def sleeps(self, port: Any) -> AsyncIterator[int]:
        port.send(os.getpid())
        await asyncio.sleep(60)
        yield 1


WAYS = pytest.mark.parametrize("way", ["items", "async_items"])


@WAYS
@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_what_a_generator_raises_as_it_is_closed_is_logged(spawn: Any, way: str, how: str) -> None:
    actor = spawn(Telling, n=1)
    port, receiver = Channel.open()
    actor.listen.call_one(port).get(timeout=WAIT)
    stream = getattr(actor, way).stream()
    assert next(stream) == 0
    if how == "closed":
        stream.close()
    else:
        del stream
        gc.collect()
    level, text = receiver.recv().get(timeout=WAIT)
    assert level == "WARNING" and f"telling.{way} raised" in text and "its caller" in text
    assert "ValueError: the file is gone" in text and 'raise ValueError("the file is gone")' in text
    assert "streaming.py" not in text


@pytest.mark.parametrize("way", ["count", "async_count"])
def test_a_stream_that_is_late_because_its_caller_takes_nothing_says_so(spawn: Any, way: str) -> None:
    actor = spawn(Telling, n=1)
    stream = getattr(actor, way).options(timeout=0.7, window=3).stream()
    assert next(stream) == 0
    actor.count.broadcast()  # whatever runs at the actor now waits behind it
    deadline = time.monotonic() + WAIT
    while not stream._call.done() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(CallTimeout, match=r"its caller took no item for .* s: the stream waits for its caller") as late:
        list(stream)
    stacks = late.value.stacks[0]
    assert f"runs {way}" in stacks and "waits for its caller to take items" in stacks
    assert f"in {way}" in stacks and "/actors/" not in stacks and "waits for messages" not in stacks


def test_stacks_of_an_async_generator_show_its_own_frames(spawn: Any) -> None:
    actor = spawn(Telling, n=1)
    port, receiver = Channel.open()
    stream = actor.sleeps.options(timeout=0.5).stream(port)
    receiver.recv().get(timeout=WAIT)
    with pytest.raises(CallTimeout) as late:
        next(stream)
    stacks = late.value.stacks[0]
    assert "in sleeps" in stacks and "await asyncio.sleep(60)" in stacks and "/actors/" not in stacks


def test_stacks_taken_from_outside_show_user_frames_only() -> None:
    import threading

    import roost.actors

    own = os.path.dirname(roost.actors.__file__)
    frames = [(f"{own}/cell.py", 9, "run"), ("user.py", 3, "step"), (f"{own}/future.py", 5, "get")]
    frames += [(f"{own}/link/readers.py", 7, "_poll"), (threading.__file__, 1, "wait")]
    lines = [f'  File "{path}", line {line} in {name}' for path, line, name in reversed(frames)]
    text = readable("\n".join(["Current thread 0x01 (most recent call first):", *lines, ""]))
    assert text == 'main thread\n  File "user.py", line 3, in step'
