"""What tests of all kinds share: controller scripts in processes of their own, and waits without sleeping."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

PATIENCE = 30.0
"""Seconds: a bound for waits that take milliseconds on a quiet machine."""


def wait_until_gone(pids: Iterable[int], timeout: float = PATIENCE) -> None:
    """Wait until each of these processes has ended; told by the kernel, not by looking again and again."""
    until = time.monotonic() + timeout
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([descriptor], [], [], max(until - time.monotonic(), 0))
        finally:
            os.close(descriptor)
        if not ready:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            raise AssertionError(f"process {pid} ({command}) lives still after {timeout:g} s")


class Script:
    """A controller script in a process and session of its own, whose lines are read as they come."""

    def __init__(self, path: Path, args: tuple[str, ...], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(path), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env}, start_new_session=True, cwd=path.parent,
        )  # fmt: skip
        self.pid = self.process.pid
        self.out = ""
        self.err = ""
        self._rest = b""
        self._until = time.monotonic() + PATIENCE

    def line(self) -> str:
        """The next line of its standard output; AssertionError with all it said when there comes none."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(self._until - time.monotonic(), 0))
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                self.kill()
                raise AssertionError(f"the script said no more:\n{self.out}{self._rest.decode()}\n{self.err}")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        self.out += line.decode() + "\n"
        return line.decode()

    def say(self, line: str = "") -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Signal the script alone."""
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end; gives its exit code."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the script runs still after {timeout:g} s:\n{self.out}\n{self.err}") from None
        self.out += (self._rest + out).decode()
        self.err += err.decode()
        self._rest = b""
        return self.process.returncode

    def kill(self) -> None:
        """Make an end of it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        if self.process.stdout is not None and not self.process.stdout.closed:
            out, err = self.process.communicate()
            self.out += (self._rest + out).decode()
            self.err += err.decode()
            self._rest = b""


@pytest.fixture(name="wait_until_gone")
def _wait_until_gone() -> Callable[..., None]:
    """`wait_until_gone(pids, timeout=30)`: until each of these processes has ended."""
    return wait_until_gone


StartScript = Callable[..., Script]
RunScript = Callable[..., Script]


@pytest.fixture
def start_script(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartScript]:
    """`start_script(source, *args, env={})`: a running script; killed at the end of the test if it still runs.

    It can import what stands beside the test's module.
    """
    scripts: list[Script] = []
    found = [str(request.path.parent), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(folder for folder in found if folder)

    def start(source: str, *args: object, env: dict[str, str] | None = None) -> Script:
        file = tmp_path / f"script{len(scripts)}.py"
        file.write_text(textwrap.dedent(source))
        scripts.append(Script(file, tuple(map(str, args)), {"PYTHONPATH": path, **(env or {})}))
        return scripts[-1]

    yield start
    for script in scripts:
        script.kill()


@pytest.fixture
def run_script(start_script: StartScript) -> RunScript:
    """`run_script(source, *args, timeout=30, code=0, env={})`: the script after its end, with that `code`."""

    def run(
        source: str, *args: object, timeout: float = PATIENCE, code: int | None = 0, env: dict[str, str] | None = None
    ) -> Script:
        script = start_script(source, *args, env=env)
        ended = script.wait(timeout)
        assert code is None or ended == code, f"exit code {ended}\n{script.out}\n{script.err}"
        return script

    return run
