"""Exceptions on their way: type, arguments, state and story, without any process."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
from typing import Any

import pytest

from roost.actors import errors
from roost.actors.errors import (
    ActorDied,
    ActorError,
    ActorStopped,
    CallTimeout,
    MeshFailure,
    RoostError,
    SupervisionError,
    Unreachable,
)
from roost.actors.travel import failure_record, from_portable, from_record, join, portable


class Two(Exception):
    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where}: {code}")
        self.code = code


class Keyword(ValueError):
    def __init__(self, *, field: str) -> None:
        super().__init__()
        self.field = field

    def __str__(self) -> str:
        return f"field {self.field}"


class Slotted(Exception):
    __slots__ = ("extra",)

    def __init__(self, extra: int) -> None:
        self.extra = extra


def raised(error: BaseException) -> BaseException:
    """The error with a traceback."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - it is what was asked for
        return caught


def travelled(error: BaseException, rank: int = 3) -> ActorError:
    """What arrives of it at a caller."""
    record = failure_record(raised(error), "trainer", "step", "n7", 123)
    sent = pickle.loads(pickle.dumps((portable(error), portable(error.__cause__))))
    original, cause = map(from_portable, sent)
    if original is not None and cause is not None:
        original.__cause__ = cause
    return from_record(record, rank, original)


EVERYTHING: list[Exception] = [
    ValueError("v", 2), KeyError("k"), IndexError(), ZeroDivisionError("z"), MemoryError("m"), RecursionError("deep"),
    OSError(2, "no", "file"), PermissionError(13, "denied"), TimeoutError("slow"), ConnectionResetError(104, "reset"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeEncodeError("ascii", "é", 0, 1, "bad"),
    ImportError("i", name="mod"),
    AttributeError("a"), SyntaxError("s", ("f.py", 1, 2, "text")), StopAsyncIteration("not this"),
    ExceptionGroup("g", [ValueError(1), KeyError(2)]), subprocess.CalledProcessError(3, ["cmd"]),
    json.JSONDecodeError("bad", "doc", 0), Two(7, "here"), Keyword(field="name"), asyncio.QueueFull(),
]  # fmt: skip


@pytest.mark.parametrize(
    "error", [e for e in EVERYTHING if not isinstance(e, StopAsyncIteration)], ids=lambda e: type(e).__name__
)
def test_what_arrives_is_of_both_types_with_arguments_and_state(error: Exception) -> None:
    got = travelled(error)
    assert isinstance(got, type(error)) and isinstance(got, ActorError)
    assert repr(got.args) == repr(error.args)
    assert type(got).__name__ == type(error).__name__ and type(got).__module__ == type(error).__module__
    for name in (
        "errno",
        "strerror",
        "filename",
        "start",
        "end",
        "object",
        "name",
        "lineno",
        "returncode",
        "pos",
        "code",
        "field",
    ):
        if hasattr(error, name):
            assert getattr(got, name) == getattr(error, name), name
    assert (got.actor, got.endpoint, got.rank, got.host, got.pid) == ("trainer", "step", 3, "n7", 123)
    assert f"trainer.step raised {type(error).__name__} at rank 3 on n7 (pid 123)" in str(got)
    assert type(got.original) is type(error)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(4), StopAsyncIteration(),
              asyncio.CancelledError("c")],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_what_means_something_to_an_interpreter_or_a_loop_is_an_actor_error_alone(error: BaseException) -> None:
    got = travelled(error)
    assert type(got) is ActorError
    assert type(got.original) is type(error) and got.original.args == error.args


def test_a_group_is_a_group_again() -> None:
    got: Any = travelled(ExceptionGroup("g", [ValueError(1), KeyError(2)]))
    matched, rest = got.split(ValueError)
    assert [type(e) for e in matched.exceptions] == [ValueError] and [type(e) for e in rest.exceptions] == [KeyError]
    assert got.message == "g"


def test_cause_notes_and_traceback_travel() -> None:
    error = ValueError("outer")
    error.__cause__ = raised(KeyError("inner"))
    error.add_note("a note")
    got = travelled(error)
    assert isinstance(got.__cause__, KeyError) and got.__notes__ == ["a note"]
    assert "KeyError: 'inner'" in got.remote_traceback and "direct cause" in got.remote_traceback
    assert "in raised" in got.remote_traceback and "a note" in got.remote_traceback
    assert "Traceback on the actor (most recent call last):" in str(got)


def test_what_arrived_can_be_sent_on_and_keeps_its_story() -> None:
    got = travelled(Two(7, "here"))
    again = pickle.loads(pickle.dumps(got))
    assert isinstance(again, Two) and isinstance(again, ActorError)
    assert (again.code, again.actor, again.rank, again.remote_traceback) == (7, "trainer", 3, got.remote_traceback)
    passed = from_record(
        failure_record(raised(got), "middle", "ask", "n8", 5), 0, pickle.loads(pickle.dumps(portable(got)))
    )
    assert isinstance(passed, Two)
    assert (passed.actor, passed.rank, passed.pid) == ("trainer", 3, 123), "it keeps where it began"
    assert any("passed on by middle.ask on n8 (pid 5)" in note for note in passed.__notes__)


def test_one_that_did_not_pickle_arrives_as_its_text() -> None:
    got = from_record(failure_record(raised(Two(1, "w")), "a", "e", "h", 1), 0, None)
    assert isinstance(got, ActorError)
    assert f"{__name__}.Two: w: 1" in str(got.original)


def test_an_exception_whose_text_fails_is_still_told() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    record = failure_record(raised(Mute()), "a", "e", "h", 1)
    assert "__str__ raised RuntimeError" in record["text"]


def test_the_joint_type_of_a_type_is_made_once() -> None:
    assert type(join(Two(1, "a"))) is type(join(Two(2, "b")))
    assert isinstance(join(Slotted(3)), Slotted) and join(Slotted(3)).extra == 3  # type: ignore[attr-defined]


def test_frames_of_the_dispatch_are_left_out() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def dispatch(f):\n    f()", "/lib/roost/actors/cell.py", "exec"), scope)

    def body() -> None:
        raise ValueError("inside")

    try:
        scope["dispatch"](body)
    except ValueError as error:
        text = failure_record(error, "a", "e", "h", 1)["traceback"]
    assert "actors/cell.py" not in text and "in body" in text


def test_others_and_running_ranks_are_named_a_few_at_most() -> None:
    got = travelled(ValueError("v"))
    got.others = ((5, travelled(KeyError("k"))),)
    got.running = tuple(range(20))
    assert "also failed: rank 5 on n7 (pid 123): KeyError: 'k'" in str(got)
    assert "still running: ranks 0-19" in str(got)
    got.running = tuple(range(0, 40, 2))
    assert "still running: ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more" in str(got)
    got.others = tuple((rank, travelled(KeyError("k"))) for rank in range(4, 11))
    assert "also failed: 7 ranks (4-10) on n7 (pid 123): KeyError: 'k'" in str(got)
    assert got.errors[3] is got and len(got.errors) == 8


def test_failures_form_the_tree_that_users_catch() -> None:
    assert issubclass(ActorDied, SupervisionError) and issubclass(Unreachable, SupervisionError)
    assert issubclass(ActorStopped, SupervisionError) and issubclass(SupervisionError, (MeshFailure, RuntimeError))
    assert issubclass(MeshFailure, RoostError) and issubclass(ActorError, RoostError)
    assert issubclass(CallTimeout, TimeoutError) and not issubclass(CallTimeout, ActorError)
    assert not issubclass(Unreachable, ActorDied) and not issubclass(ActorDied, Unreachable)
    assert all(hasattr(errors, name) for name in ("Busy", "CallCancelled"))


def test_a_failure_pickles_with_its_chain_and_reports_it() -> None:
    first = ActorDied("worker w-2 was killed by SIGKILL", mesh_name="w", crashed_ranks=(2,))
    second = MeshFailure("its owner failed", mesh_name="owner", crashed_ranks=(0,), cause=first)
    again = pickle.loads(pickle.dumps(second))
    assert type(again) is MeshFailure and again.mesh_name == "owner" and again.crashed_ranks == (0,)
    assert type(again.cause) is ActorDied and again.__cause__ is again.cause
    report = again.report()
    assert report.splitlines()[0] == "mesh 'owner', ranks [0]: its owner failed"
    assert "because: " in report and "SIGKILL" in report
