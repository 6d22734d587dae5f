"""`patch_actor(Original, Mock)`: spawn another class where one is asked for, here and in processes spawned within."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...mesh.hostmesh import HostMesh
from ...mesh.procmesh import ProcMesh

_instead: dict[type, type] = {}
_spawn, _spawn_procs = ProcMesh.spawn, HostMesh.spawn_procs


@functools.wraps(_spawn)
def _spawn_instead(self: ProcMesh, name: str, Class: type, *args: Any, **kwargs: Any) -> Any:
    return _spawn(self, name, _instead.get(Class, Class), *args, **kwargs)


@functools.wraps(_spawn_procs)
def _spawn_procs_too(self: HostMesh, *args: Any, **kwargs: Any) -> ProcMesh:
    if _instead:
        given = inspect.signature(_spawn_procs).bind(self, *args, **kwargs)
        given.arguments["bootstrap"] = _Bootstrap(dict(_instead), given.arguments.get("bootstrap"))
        return _spawn_procs(*given.args, **given.kwargs)
    return _spawn_procs(self, *args, **kwargs)


class _Bootstrap:
    """Runs in a new process: the same classes are replaced there, before the user's bootstrap."""

    def __init__(self, instead: dict[type, type], inner: Callable[[], Any] | None) -> None:
        self._instead = instead
        self._inner = inner

    def __call__(self) -> Any:
        _replace(self._instead)
        return self._inner() if self._inner is not None else None


def _replace(instead: dict[type, type]) -> None:
    _instead.clear()
    _instead.update(instead)
    ProcMesh.spawn = _spawn_instead  # type: ignore[method-assign]
    HostMesh.spawn_procs = _spawn_procs_too  # type: ignore[method-assign]


class patch_actor:
    """Where `Original` is spawned, spawn `Mock`: in a `with` or `async with` block, or in a decorated function.

    Processes that are spawned within replace it too, and go on doing so after the block.

    >>> with patch_actor(Store, FakeStore):                              # doctest: +SKIP
    ...     store = procs.spawn("store", Store)
    """

    def __init__(self, original: type, mock: type) -> None:
        self._original = original
        self._mock = mock
        self._before: list[dict[type, type]] = []

    def __enter__(self) -> patch_actor:
        self._before.append(dict(_instead))
        _replace({**_instead, self._original: self._mock})
        return self

    def __exit__(self, *exc: object) -> None:
        _replace(self._before.pop())

    async def __aenter__(self) -> patch_actor:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run_async if inspect.iscoroutinefunction(function) else run
