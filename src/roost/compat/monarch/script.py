"""Runs a script, or a module, as `python` would: as `__main__`, which stays until the interpreter ends."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import sys
from types import CodeType, ModuleType
from typing import Any


def run_script(path: str, arguments: list[str]) -> None:
    """As `python path arguments…`; a folder or archive with a `__main__.py` too."""
    if os.path.isdir(path) or (os.path.isfile(path) and path.endswith((".zip", ".pyz"))):
        _put_first(path)
        run_module("__main__", arguments, argv0=path)
        return
    with io.open_code(os.path.abspath(path)) as file:
        code = compile(file.read(), path, "exec")
    _put_first(os.path.dirname(os.path.realpath(path)))
    sys.argv[:] = [path, *arguments]
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    _run(code, __file__=path, __loader__=loader, __package__=None, __spec__=None, __cached__=None)


def _put_first(folder: str) -> None:
    """The script's folder takes the place that `python -m` gave to the working directory, unless both are unwanted."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def run_module(name: str, arguments: list[str], argv0: str | None = None) -> None:
    """As `python -m name arguments…`; ImportError when there is no such module."""
    own = sys.modules.pop("__main__") if name == "__main__" else None
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    finally:
        if own is not None:
            sys.modules["__main__"] = own
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise ImportError(f"no module {name!r} to run in {', '.join(sys.path[:3])} …", name=name)
    sys.argv[:] = [argv0 or spec.origin or name, *arguments]
    _run(code, __file__=spec.origin, __loader__=loader, __package__=spec.parent, __spec__=spec, __cached__=spec.cached)


def _run(code: CodeType, **names: Any) -> None:
    """Execute in a `__main__` of its own. What it raises is told without the frames of this module."""
    main = ModuleType("__main__")
    main.__dict__.update(names, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    except Exception as error:  # noqa: BLE001 - told as the interpreter tells it
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(trace), trace
        sys.excepthook(type(error), error, trace)
        raise SystemExit(1) from None
