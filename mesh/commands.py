"""What the processes of a mesh are started under: commands, bindings, and the checks of both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from .launch.spec import CHILD
from .shape import Extent, Point

BINDINGS = frozenset(["cpunodebind", "membind", "physcpubind", "cpus"])


@dataclass(frozen=True, slots=True)
class BootstrapCommand:
    """A command that workers are started by, such as a profiler or a container.

    It gets the Python command line of a worker as its last arguments, unless it ends with it already, as what
    `default_bootstrap_cmd()` gives does.

    Attributes:
        program: found in PATH, or a path.
        arg0: what the program is told as its own name; None: `program`.
        args: its arguments. `BootstrapCommand("nsys", ("profile",))` may leave `arg0` out.
        env: added to the environment; None removes a variable.
        inherit_env: False starts from an empty environment: `env`, the variables of the rank, and what Roost needs
            (PATH, PYTHONPATH, PYTHONHOME, LD_LIBRARY_PATH and its own).

    >>> BootstrapCommand("nsys", args=["profile", "-o", "trace"]).with_env({"NSYS_LOG": "1"}).env
    {'NSYS_LOG': '1'}
    """

    program: str
    arg0: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    inherit_env: bool = True

    def __post_init__(self) -> None:
        arg0: Any = self.arg0
        args: Any = self.args
        if arg0 is not None and not isinstance(arg0, str):  # (program, args, env) by position
            if args and not isinstance(args, Mapping):
                raise TypeError(f"arg0 is the name that {self.program!r} is told, not {arg0!r}")
            object.__setattr__(self, "env", args or self.env)
            object.__setattr__(self, "arg0", None)
            args = arg0
        if isinstance(args, str) or not all(isinstance(arg, str) for arg in args):
            raise TypeError(f"args is a sequence of strings, not {args!r}")
        object.__setattr__(self, "args", tuple(args))
        object.__setattr__(self, "env", dict(self.env or {}))
        check_env(self.env)

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """The same with more variables; None removes one."""
        return replace(self, env={**self.env, **env})

    def argv(self) -> list[str] | None:
        """The command line; None where it is what a worker is started by anyway."""
        plain = self.program == sys.executable and tuple(self.args) == CHILD
        return None if plain and self.arg0 is None and self.inherit_env else [self.program, *self.args]

    def __hash__(self) -> int:
        return hash((self.program, self.arg0, tuple(self.args), tuple(sorted(self.env)), self.inherit_env))


Command: TypeAlias = BootstrapCommand | Callable[[Point], BootstrapCommand | None]


def default_bootstrap_cmd() -> BootstrapCommand:
    """What a worker is started by: this Python. Give it variables, or put its parts behind a command of your own.

    >>> default_bootstrap_cmd().with_env({"LANG": "C"}).argv() is None  # forked, not started
    True
    """
    return BootstrapCommand(sys.executable, args=CHILD)


def commands_of(command: Command | None, extent: Extent) -> list[BootstrapCommand | None]:
    """The command of each rank of the new mesh."""
    if command is None or isinstance(command, BootstrapCommand):
        return [command] * extent.nelements
    found = []
    for point in extent.points():
        made = command(point)
        if made is not None and not isinstance(made, BootstrapCommand):
            raise TypeError(f"bootstrap_command gave {made!r} for {point!r}: a BootstrapCommand, or None, is wanted")
        found.append(made)
    return found


def started_by(command: BootstrapCommand | None, binding: Mapping[str, str]) -> dict[str, Any]:
    """How one process is started, as its agent is told."""
    rest = dict(binding)
    told: dict[str, Any] = {"cpus": rest.pop("cpus", None)}
    argv = command.argv() if command is not None else None
    if command is not None:
        told |= {"env": dict(command.env), "inherit_env": command.inherit_env, "arg0": command.arg0}
    if rest:
        if command is not None and command.arg0 is not None:
            raise ValueError(f"arg0 of {command.program!r} cannot be told through numactl: leave one of them out")
        argv = ["numactl", *(f"--{key}={value}" for key, value in sorted(rest.items())), *(argv or ())]
    if argv is not None:
        told["command"] = argv
    return told


def check_env(env: Any) -> None:
    """Refuse variables of the wrong kind."""
    for name, value in dict(env or {}).items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise TypeError(f"env maps names to strings, or to None to remove one; {name!r} has {value!r}")


def check_bindings(proc_bind: Sequence[Mapping[str, str]] | None, count: int) -> None:
    """Refuse bindings that do not fit the mesh."""
    if proc_bind is None:
        return
    if isinstance(proc_bind, Mapping) or not all(
        isinstance(binding, Mapping) and all(isinstance(value, str) for value in binding.values())
        for binding in proc_bind
    ):
        raise TypeError(
            'proc_bind is a list with a mapping of strings for each process, such as [{"cpus": "0"}], '
            f"not {proc_bind!r}"
        )
    if len(proc_bind) != count:
        raise ValueError(f"proc_bind length ({len(proc_bind)}) must equal procs_per_host ({count})")
    for binding in proc_bind:
        unknown = sorted(set(binding) - BINDINGS)
        if unknown:
            raise ValueError(f"proc_bind has no key {unknown[0]!r}; there are {', '.join(sorted(BINDINGS))}")


def check_options(per_host: Any, bootstrap: Any, command: Any, env: Any, preload: Any) -> None:
    """Refuse, at the call, options of the wrong kind."""
    if per_host is not None and not isinstance(per_host, Mapping):
        raise TypeError(f'per_host is a mapping of dimensions to sizes, such as {{"gpus": 4}}, not {per_host!r}')
    if bootstrap is not None and not callable(bootstrap):
        raise TypeError(f"bootstrap is called in every process, and {bootstrap!r} cannot be called")
    if command is not None and not isinstance(command, BootstrapCommand) and not callable(command):
        raise TypeError(
            f'bootstrap_command is a BootstrapCommand("program", args=["argument"]), or a function of a Point that '
            f"gives one, not {command!r}"
        )
    if isinstance(preload, str):
        raise TypeError(f"preload is a list of modules: write [{preload!r}]")
    check_env(env)
