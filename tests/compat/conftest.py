"""Programs written for Monarch, run by `python -m roost.compat.monarch` in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

PATIENCE = 90.0  # seconds for a program that takes two


@dataclass(frozen=True)
class Ended:
    """A program after its end."""

    code: int
    out: str
    err: str


def _living(run_dir: str) -> list[psutil.Process]:
    """The processes that were started with this run directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ROOST_RUN_DIR") == run_dir:
                found.append(process)
        except psutil.Error:
            continue
    return found


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """`run(path or source, *args, options=(), code=0, env={})`: a program for Monarch, from another folder.

    With `code` it must end with that exit code; it must leave no process and no run directory.
    """
    run_dir = tempfile.mkdtemp(prefix="rt-")

    def start(
        program: Path | str,
        *args: str,
        options: tuple[str, ...] = (),
        code: int | None = 0,
        env: dict[str, str] | None = None,
    ) -> Ended:
        if isinstance(program, str):
            path = tmp_path / "program.py"
            path.write_text(textwrap.dedent(program))
            program = path
        command = [sys.executable, "-m", "roost.compat.monarch", *options, str(program), *args]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", start_new_session=True,
            env={**os.environ, "ROOST_RUN_DIR": run_dir, "HOME": str(tmp_path), **(env or {})},
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                out, err = process.communicate(timeout=PATIENCE)
                raise AssertionError(f"it runs still after {PATIENCE:g} s:\n{out}\n{err}") from None
        assert code is None or process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        _, alive = psutil.wait_procs(_living(run_dir), timeout=10)
        assert not alive, f"processes are left: {alive}"
        assert not os.listdir(run_dir), f"left in the run directory: {os.listdir(run_dir)}"
        return Ended(process.returncode, out, err)

    yield start
    for process in _living(run_dir):
        process.kill()
    for path in Path(run_dir).iterdir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    os.rmdir(run_dir)
