"""Soaks: the same again and again, and nothing grows. Run by `make test-long`."""

from __future__ import annotations

import os
import threading
from typing import Any

import psutil
import pytest
from troupe import Player

PATIENCE = 60

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_spawning_and_stopping_leaves_nothing_however_often(site: Any) -> None:
    def once() -> None:
        procs = site.spawn_procs(4)
        assert procs.spawn("player", Player).echo.call(1).get(PATIENCE).values() == [1] * 4
        procs.stop().get(PATIENCE)

    for _ in range(5):
        once()
    process = psutil.Process()
    before = open_descriptors(), threading.active_count(), len(process.children(recursive=True))
    memory = process.memory_info().rss
    for _ in range(200):
        once()
    assert (open_descriptors(), threading.active_count(), len(process.children(recursive=True))) == before
    assert process.memory_info().rss < memory + (64 << 20)


def test_a_million_calls_are_answered_in_order(site: Any) -> None:
    echo = site.spawn_procs(2).spawn("player", Player).slice(gpus=1).echo
    process = psutil.Process()
    for number in range(1000):
        echo.call_one(number).get(PATIENCE)
    memory = process.memory_info().rss
    for round_ in range(100):
        futures = [echo.call_one((round_, number)) for number in range(10_000)]
        assert [future.get(PATIENCE) for future in futures] == [(round_, number) for number in range(10_000)]
    assert process.memory_info().rss < memory + (128 << 20)


def test_threads_that_wait_at_the_same_time_each_get_their_own_answers(site: Any) -> None:
    echo = site.spawn_procs(2).spawn("player", Player).slice(gpus=1).echo
    wrong: list[Any] = []

    def ask(me: int) -> None:
        for number in range(20_000):
            answer = echo.call_one((me, number)).get(PATIENCE)
            if answer != (me, number):
                wrong.append((me, number, answer))

    threads = [threading.Thread(target=ask, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not wrong and not any(thread.is_alive() for thread in threads)
