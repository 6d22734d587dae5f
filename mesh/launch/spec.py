"""What is asked of the launcher, and what it answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Held at 1 in every zygote whatever the user says, so they never tell two zygotes apart."""

CHILD = ("-P", "-m", "roost.mesh.launch.child")
"""The arguments of Python that make it a worker; the number of a descriptor follows."""

KEPT_VARIABLES = ("PATH", "PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH")
"""What a worker that inherits no environment has nevertheless, besides Roost's own: it would not find Roost."""


@dataclass(frozen=True, slots=True)
class ProcSpec:
    """One worker to start.

    `entry` is "module:function", called as `function(payload)` in the worker's main thread. When it
    returns or raises SystemExit the worker leaves by `os._exit`; another exception is printed and
    the exit code is 1. `env` must stand before exec (None removes a variable) and so chooses the
    zygote; `rank_env` is set after the fork. `python` and `command` (a prefix, such as
    `("numactl", "--cpunodebind=0")`, or a whole command that ends with CHILD) lead to an exec, whose program is told
    that it is called `arg0`. Without `inherit_env` the environment begins empty, but for KEPT_VARIABLES. `cpus` is a
    list as taskset takes it: "0-3,8".
    `output` receives stdout and stderr; it occupies about `output_limit` bytes of disk at most.
    """

    proc_id: int
    name: str
    entry: str
    payload: bytes
    output: str
    env: Mapping[str, str | None] = field(default_factory=dict)
    rank_env: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    python: str | None = None
    command: tuple[str, ...] | None = None
    arg0: str | None = None
    inherit_env: bool = True
    cpus: str | None = None
    cwd: str | None = None
    sys_path: tuple[str, ...] = ()
    output_limit: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker that runs: `started` on this host's monotonic clock, `start_ticks` from /proc.

    `notes` are sentences for the user, such as a preload that had to be dropped.
    """

    proc_id: int
    name: str
    pid: int
    started: float
    start_ticks: int
    notes: tuple[str, ...] = ()


class LaunchError(Exception):
    """A worker that did not start, and why, in one sentence."""

    def __init__(self, proc_id: int, name: str, reason: str) -> None:
        super().__init__(f"worker {name} was not started: {reason}")
        self.proc_id = proc_id
        self.name = name
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ZygoteKey:
    """What two workers must share to be forked from one zygote of this host's interpreter."""

    preload: tuple[str, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    sys_path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"zygote(preload {', '.join(self.preload) or 'nothing'}; {len(self.env)} variables)"


BARE = ZygoteKey()
"""The zygote that imported nothing: what is started by exec is forked from it first."""


def zygote_key(spec: ProcSpec) -> ZygoteKey:
    env = sorted((k, v) for k, v in spec.env.items() if k not in THREAD_VARIABLES)
    return ZygoteKey(spec.preload, tuple(env), spec.sys_path)


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPU numbers of a list as taskset takes it.

    >>> parse_cpus("0-3,8")
    (0, 1, 2, 3, 8)
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = int(first)
        high = int(last) if dash else low
        if high < low:
            raise ValueError(f"range {part!r} runs backwards")
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def check_cpus(text: str) -> str | None:
    """Why these CPUs cannot be given, or None."""
    try:
        asked = set(parse_cpus(text))
    except ValueError as error:
        return f"cpus={text!r} is not a CPU list such as '0-3,8': {error}"
    if missing := asked - os.sched_getaffinity(0):
        return f"cpus={text!r} names CPUs this host agent may not use: {sorted(missing)}"
    return None
