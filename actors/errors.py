"""What can go wrong, by whose fault; every text says what happened, where, and what to do next.

RoostError
  ActorError         an endpoint raised: caught also by the type of what it raised
  CallTimeout        a deadline of the caller passed (also a TimeoutError)
  Busy               the sender's own bound of unsent messages is full
  MeshFailure        something that a mesh owns has failed
    SupervisionError   a call cannot be answered any more (also a RuntimeError)
      ActorDied          the actor, or its process, is gone
      Unreachable        its host cannot be reached; the call may have run
      ActorStopped       it was stopped on purpose
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from typing import Any

from .ranks import spell

_NAMED = 8  # ranks named in a text
_STACKS = 4  # different stacks in a text …
_STACK_LINES = 40  # … and lines of each
_RANK = re.compile(r" at rank \d+")
# What differs in equal stacks: addresses, thread numbers, ranks of actors.
_PARTICULAR = re.compile(r"0x[0-9a-f]+|\b(?:pid|thread|Thread-)\s?\d+|(?<=^actor )(\S+)\[\d+\]", re.IGNORECASE | re.M)


OWNS = ", which it owns, has failed: "  # between what failed and the failure of its own that it follows from


class RoostError(Exception):
    """Root of Roost's own exceptions."""


class _OfSeveral:
    """What an error of a call on several ranks knows of the others."""

    others: tuple[tuple[int, BaseException], ...] = ()
    running: tuple[int, ...] = ()
    rest_cancelled: bool = False

    def the_rest(self) -> list[str]:
        """What else failed, equal failures folded, and who still runs; a line each."""
        lines = []
        if self.others:
            lines.append("also failed: " + "; ".join(fold(self.others)))
        if self.running:
            what = "cancelled with it" if self.rest_cancelled else "still running"
            lines.append(f"{what}: ranks {spell(self.running, most=_NAMED)}")
        return lines


class ActorError(_OfSeveral, RoostError):
    """An endpoint raised. The exception that arrives is also an instance of what the endpoint raised.

    Attributes:
        original: the exception as it was on the actor (its own type, no remote traceback).
        remote_traceback: the traceback on the actor, as text.
        actor, rank, host, pid: where it was raised; `rank` is the rank within the mesh that was called.
        others: further failures of the same call that joined within its window, as (rank, exception).
        running: ranks that had not answered when the call failed; they go on unless the call said `cancel_rest`.
        errors: all failures of the call by rank, this one included.

    >>> try:
    ...     worker.parse.call_one("x").get()        # doctest: +SKIP
    ... except ValueError as error:                 # the endpoint's own type
    ...     print(error.rank, error.host)           # and Roost's attributes
    """

    original: BaseException | None = None
    remote_traceback: str = ""
    actor: str = ""
    endpoint: str = ""
    rank: int = 0
    host: str = ""
    pid: int = 0

    @property
    def errors(self) -> dict[int, BaseException]:
        """All failures of the call, by rank."""
        return {self.rank: self, **dict(self.others)}

    @property
    def exception(self) -> BaseException | None:
        """The same as `original`."""
        return self.original

    def __str__(self) -> str:
        return self.describe()

    def describe(self) -> str:
        """The whole story: where, the remote traceback, what else failed, who still runs."""
        name = type(self.original).__name__ if self.original is not None else "an exception"
        lines = [f"{self.actor}.{self.endpoint} raised {name} at rank {self.rank} on {self.host} (pid {self.pid})"]
        text = self.remote_traceback.rstrip()
        if text:
            lines.append(
                text.replace("Traceback (most recent call last):", "Traceback on the actor (most recent call last):")
            )
        return "\n".join(lines + self.the_rest())


class CallTimeout(RoostError, TimeoutError):
    """The caller's deadline passed; the call was cancelled at the actors.

    Attributes:
        unanswered: the ranks that had not answered.
        stacks: what those ranks were doing when the deadline passed, as text, by rank; the error's own text has the
            beginning of each, equal ones told once.
        places: process and host of each of them.
    """

    unanswered: tuple[int, ...] = ()
    stacks: dict[int, str] = {}
    places: dict[int, str] = {}

    def __str__(self) -> str:
        text = super().__str__()
        if len(self.unanswered) > 1 or self.stacks:
            who = ", ".join(f"{rank} ({self.places.get(rank, '?')})" for rank in self.unanswered[:_NAMED])
            more = f" and {len(self.unanswered) - _NAMED} more" if len(self.unanswered) > _NAMED else ""
            text += f"\nno answer from rank{'s' if len(self.unanswered) > 1 else ''} {who}{more}"
        alike: dict[str, list[int]] = {}
        for rank, stack in self.stacks.items():
            alike.setdefault(_PARTICULAR.sub(r"\1", stack.partition("\n")[2]), []).append(rank)
        told = sorted(alike.values(), key=len)  # the odd one out comes first
        for ranks in told[:_STACKS]:
            lines = self.stacks[ranks[0]].rstrip().split("\n")
            text += f"\nrank{'s' if len(ranks) > 1 else ''} {spell(ranks, most=_NAMED)}:"
            text += "".join(f"\n    {line}" for line in lines[:_STACK_LINES])
            if len(lines) > _STACK_LINES:
                text += f"\n    … {len(lines) - _STACK_LINES} more lines, in .stacks[{ranks[0]}]"
        if len(alike) > _STACKS:
            text += f"\n… {len(alike) - _STACKS} more stacks, in .stacks"
        return text

    def __reduce__(self) -> Any:
        return type(self), self.args, dict(self.__dict__)


class CallCancelled(RoostError):
    """The call was cancelled by its caller."""


class Busy(RoostError):
    """The receiver grants no credit and the sender's own bound is full. Wait for answers, or send less."""


class MeshFailure(_OfSeveral, RoostError):
    """Something a mesh owns has failed; handed to `__supervise__` and to `unhandled_fault_hook`.

    Attributes: `mesh_name`, `crashed_ranks`, `reason` (one sentence), `cause` (the failure it follows from); of a call
    on several ranks also `others` and `running`, as an ActorError has them.
    """

    def __init__(
        self,
        message: str,
        *,
        mesh_name: str = "",
        crashed_ranks: tuple[int, ...] = (),
        cause: BaseException | None = None,
        report: Any = None,
    ) -> None:
        super().__init__(message)
        self.mesh_name = mesh_name
        self.crashed_ranks = crashed_ranks
        self.reason = message
        self.cause = cause
        self.exit_report = report
        if cause is not None:
            self.__cause__ = cause

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *self.the_rest()])

    def report(self) -> str:
        """The failure and the chain of what it follows from, a line each."""
        reason = self.reason.replace(OWNS, f"{OWNS.rstrip(': ')}\n  because: ")
        lines = [f"mesh {self.mesh_name!r}, ranks {list(self.crashed_ranks)}: {reason}"]
        cause, said = self.cause, self.reason
        while cause is not None:
            if str(cause) != said:
                said = str(cause)
                lines.append(f"  because: {_short(cause)}")
            cause = getattr(cause, "cause", None)
        return "\n".join(lines)

    def __reduce__(self) -> Any:
        return _rebuild_failure, (
            type(self),
            self.args[0],
            self.mesh_name,
            self.crashed_ranks,
            self.cause,
            self.exit_report,
        )


def _rebuild_failure(kind: type[MeshFailure], text: str, mesh: str, ranks: Any, cause: Any, report: Any) -> MeshFailure:
    return kind(text, mesh_name=mesh, crashed_ranks=tuple(ranks), cause=cause, report=report)


class SupervisionError(MeshFailure, RuntimeError):
    """A call cannot be answered any more."""


class ActorDied(SupervisionError):
    """The actor or its process is gone; `exit_report` tells how the process ended, if it did."""


class ActorStopped(SupervisionError):
    """The actor or its mesh was stopped on purpose."""


class Unreachable(SupervisionError):
    """The host cannot be reached. The process may live and the call may have run."""


def _short(error: BaseException) -> str:
    """Type and text, without what else an error of several ranks tells."""
    if isinstance(error, ActorError):
        return f"{type(error.original).__name__}: {error.original}"
    if isinstance(error, MeshFailure):
        return f"{type(error).__name__}: {_RANK.sub('', error.reason.partition(chr(10))[0])}"
    return traceback.format_exception_only(type(error), error)[-1].strip()


def fold(failures: Sequence[tuple[int, BaseException]]) -> list[str]:
    """Failures by rank in few words, each with its place; equal ones told once, with their number.

    >>> fold([(1, ValueError("x")), (2, ValueError("x")), (5, KeyError("k"))])
    ['2 ranks (1-2): ValueError: x', "rank 5: KeyError: 'k'"]
    """
    alike: dict[str, list[tuple[int, BaseException]]] = {}
    for rank, error in failures:
        alike.setdefault(_short(error), []).append((rank, error))
    lines = []
    for text, members in alike.items():
        ranks = [rank for rank, _ in members]
        hosts = sorted({place for _, error in members if (place := _place(error))})
        where = f" on {', '.join(hosts[:4])}{' …' if len(hosts) > 4 else ''}" if hosts else ""
        if len(members) == 1:
            lines.append(f"rank {ranks[0]}{where}: {text}")
        else:
            lines.append(f"{len(members)} ranks ({spell(ranks, most=_NAMED)}){where}: {text}")
    return lines


def _place(error: BaseException) -> str:
    if isinstance(error, ActorError) and error.host:
        return f"{error.host} (pid {error.pid})"
    return ""
