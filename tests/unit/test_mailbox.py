"""The queue of an actor with a bound, and what a bound may be."""

import queue
import threading

import pytest

from roost.actors.mailbox import BoundedQueue, Mailbox


def test_it_is_a_queue() -> None:
    box = BoundedQueue()
    assert box.empty() and box.qsize() == 0
    with pytest.raises(queue.Empty):
        box.get_nowait()
    for item in "abc":
        box.put(item)
    assert (box.get(), box.qsize(), list(box)) == ("a", 2, ["b", "c"])


def test_what_waits_can_be_taken_out() -> None:
    box = BoundedQueue()
    box.put("a")
    box.put("b")
    box.remove("a")
    assert box.get_nowait() == "b"
    with pytest.raises(ValueError, match="not in deque"):
        box.remove("b")


def test_a_reader_is_woken() -> None:
    box = BoundedQueue()
    threading.Timer(0.02, box.put, ["late"]).start()
    assert box.get() == "late"


@pytest.mark.parametrize("policy", ["block", "drop_oldest", "fail"])
def test_there_are_three_policies(policy: str) -> None:
    assert Mailbox(3, policy).policy == policy  # type: ignore[arg-type]
