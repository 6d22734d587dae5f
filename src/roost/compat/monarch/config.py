"""`monarch.config`: Monarch's configuration, kept and checked here. Workers get what their spawner had configured."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...actors.policy import policy, set_policy
from .keys import DEFAULTS, Encoding, checked, from_environment, from_text

CARRIED = "ROOST_MONARCH_CONFIG"  # how it reaches workers: variables that the program has set are theirs too

_runtime: dict[str, Any] = {}


def _forward_output(value: bool) -> None:
    """Workers' output: Monarch's local workers write to the terminal when it is off, so it is never turned off."""
    if value:
        set_policy(replace(policy(), forward_output=True))


ACTS: dict[str, Callable[[Any], None]] = {"enable_log_forwarding": _forward_output}
"""What setting a key does here, for those keys that mean something to Roost."""


def configure(**values: Any) -> None:
    """Set keys from now on. ValueError for an unknown key, TypeError for a value of the wrong kind.

    >>> configure(cleanup_timeout="90s")
    >>> get_global_config()["cleanup_timeout"]
    '1m 30s'
    >>> clear_runtime_config()
    """
    _apply({key: checked(key, value) for key, value in values.items()})


def _apply(values: dict[str, Any]) -> None:
    _runtime.update(values)
    for key, value in values.items():
        if key in ACTS:
            ACTS[key](value)
    _carry()


def _carry() -> None:
    """Keep the variable that workers read up to date."""
    if not _runtime and CARRIED not in os.environ:
        return
    os.environ[CARRIED] = json.dumps({key: _written(value) for key, value in _runtime.items()})


def _written(value: Any) -> Any:
    if isinstance(value, Encoding):
        return value.value
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def take_over() -> None:
    """In a worker: what the spawner had configured."""
    text = os.environ.get(CARRIED)
    for key, value in json.loads(text).items() if text else ():
        _runtime[key] = from_text(key, value) if isinstance(value, str) else value


def get_runtime_config() -> dict[str, Any]:
    """Every key: its default, or what `configure` has set."""
    return {**DEFAULTS, **_runtime}


def get_global_config() -> dict[str, Any]:
    """Every key: what the environment's `HYPERACTOR_<KEY>` says, else what `configure` has set, else its default."""
    return {**DEFAULTS, **_runtime, **from_environment()}


def clear_runtime_config() -> None:
    """Forget what `configure` has set."""
    _runtime.clear()
    _carry()


@contextmanager
def configured(**values: Any) -> Iterator[dict[str, Any]]:
    """Set keys for a `with` block, which gets the whole configuration; afterwards all is as before.

    >>> with configured(cleanup_timeout="5s") as config:
    ...     config["cleanup_timeout"]
    '5s'
    """
    before = dict(_runtime)
    configure(**values)
    try:
        yield get_global_config()
    finally:
        clear_runtime_config()
        _apply(before)


def parametrize_config(**options: set[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test under each combination of these values: a pytest test for each."""
    return _parametrized(list(options), list(itertools.product(*options.values())))


def parametrize_config_pointwise(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test under the first value of each, then the second …; ValueError when there are not as many of each."""
    if len({len(values) for values in options.values()}) > 1:
        raise ValueError(f"as many values for each key: { ({key: len(values) for key, values in options.items()}) }")
    return _parametrized(list(options), list(zip(*options.values(), strict=True)))


def _parametrized(keys: list[str], rows: list[tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    import pytest  # these are for tests alone

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        async def run_async(*args: Any, monarch_config: dict[str, Any], **kwargs: Any) -> Any:
            with configured(**monarch_config):
                return await test(*args, **kwargs)

        @functools.wraps(test)
        def run(*args: Any, monarch_config: dict[str, Any], **kwargs: Any) -> Any:
            with configured(**monarch_config):
                return test(*args, **kwargs)

        made: Any = run_async if inspect.iscoroutinefunction(test) else run
        added = inspect.Parameter("monarch_config", inspect.Parameter.KEYWORD_ONLY)
        shown = [*signature.parameters.values(), added]
        made.__signature__ = signature.replace(parameters=shown)
        cases = [dict(zip(keys, row, strict=True)) for row in rows]
        names = ["-".join(f"{key}={value}" for key, value in case.items()) for case in cases]
        marked: Callable[..., Any] = pytest.mark.parametrize("monarch_config", cases, ids=names)(made)
        return marked

    return decorate


prefix_python_logs_with_actor = True
"""Of `monarch.actor.config`. Accepted; Roost leaves `logging` as it is, and lines of workers carry their process."""
