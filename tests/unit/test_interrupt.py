"""Interrupts hit the user's code that they are meant for, and nothing else."""

import threading
import time
from typing import Any

import pytest

from roost.actors.errors import CallCancelled
from roost.actors.interrupt import Interrupt
from roost.actors.link.io import IoThread


@pytest.fixture
def io() -> Any:
    thread = IoThread("test-io")
    yield thread
    thread.stop()


def test_a_loop_is_interrupted(io: Any) -> None:
    guard = Interrupt(io)

    def loop() -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pass

    threading.Timer(0.05, guard.cancel, [None]).start()
    with pytest.raises(CallCancelled, match="no longer waits"):
        guard.run(loop)


def briefly() -> None:
    for _ in range(2000):
        pass


def test_what_has_ended_is_not_interrupted(io: Any) -> None:
    for round_ in range(200):
        guard = Interrupt(io)
        timer = threading.Timer(round_ % 20 * 20e-6, guard.cancel, [None])
        timer.start()
        try:
            guard.run(briefly)
        except CallCancelled:
            timer.join()
            continue
        timer.join()  # whatever came too late would be raised here


def test_the_value_is_passed_on(io: Any) -> None:
    assert Interrupt(io).run(divmod, 7, 3) == (2, 1)
