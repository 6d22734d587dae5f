"""When a policy restarts what has died: with a clock of its own, and no processes."""

from __future__ import annotations

from typing import Any

import pytest

from roost.mesh import RestartPolicy


def delays(policy: RestartPolicy, deaths: list[float]) -> list[float | None]:
    """What the policy says to deaths at these times, when each restart counts from its death."""
    history: list[float] = []
    answers = []
    for now in deaths:
        answers.append(policy.next_delay(history, now))
        if answers[-1] is not None:
            history.append(now)
    return answers


def test_each_restart_waits_twice_as_long_as_the_one_before_up_to_the_longest() -> None:
    policy = RestartPolicy(max_restarts=8, backoff=0.5, max_backoff=10.0, jitter=0.0)
    assert delays(policy, [float(n) for n in range(7)]) == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_the_budget_ends_and_comes_back_when_restarts_are_long_ago() -> None:
    policy = RestartPolicy(max_restarts=2, within=100.0, backoff=1.0, jitter=0.0)
    assert delays(policy, [0.0, 10.0, 20.0, 99.0]) == [1.0, 2.0, None, None]
    assert delays(policy, [0.0, 10.0, 100.0, 105.0, 110.0]) == [1.0, 2.0, 2.0, None, 2.0]


def test_a_mesh_that_is_restarted_seldom_starts_with_the_first_wait_each_time() -> None:
    policy = RestartPolicy(max_restarts=1, within=10.0, backoff=1.0, jitter=0.0)
    assert delays(policy, [n * 11.0 for n in range(20)]) == [1.0] * 20


def test_no_restarts_are_none() -> None:
    assert RestartPolicy(max_restarts=0).next_delay([], 0.0) is None


def test_jitter_only_lengthens_and_spreads() -> None:
    policy = RestartPolicy(backoff=1.0, jitter=0.5)
    drawn = [policy.next_delay([], 0.0) for _ in range(200)]
    assert all(delay is not None and 1.0 <= delay <= 1.5 for delay in drawn)
    assert len(set(drawn)) > 100


def test_thousands_of_restarts_overflow_nothing() -> None:
    policy = RestartPolicy(max_restarts=100_000, backoff=1.0, max_backoff=30.0, jitter=0.0)
    assert policy.next_delay([0.0] * 5000, 1.0) == 30.0


@pytest.mark.parametrize(
    "wrong", [{"max_restarts": -1}, {"within": float("nan")}, {"backoff": "soon"}, {"jitter": -0.1}]
)
def test_what_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"RestartPolicy.{next(iter(wrong))}"):
        RestartPolicy(**wrong)
