"""From a worker's end to its report."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from . import linux, output
from .evidence import Evidence
from .reaper import Watch
from .report import ExitReport
from .spec import Launched, ProcSpec

_TAIL_LINES = 40  # a crash in a worker prints about 25


@dataclass(slots=True)
class Worker:
    """A worker the launcher knows: `sent` are the signals it sent itself."""

    spec: ProcSpec
    launched: Launched
    watch: Watch
    output_start: int
    sent: set[int] = field(default_factory=set)
    report: ExitReport | None = None


def inquire(
    worker: Worker, status: linux.ExitStatus | None, evidence: Evidence, host: str, node_id: str | None
) -> ExitReport:
    """The report on a worker that ended with `status`, or (None) that SIGKILL has not ended yet."""
    spec, pid = worker.spec, worker.launched.pid
    tail = output.tail_lines(spec.output, _TAIL_LINES, worker.output_start)
    oom = fault = name = None
    if status is not None and status.signal == signal.SIGKILL and signal.SIGKILL not in worker.sent:
        oom = evidence.out_of_memory(pid, status.comm)
    if status is not None and (status.signal is not None or status.code):
        fault = evidence.gpu_fault(pid, tail)
    if status is not None and status.signal is not None:
        name = linux.signal_name(status.signal)
    return ExitReport(
        proc_id=spec.proc_id,
        name=spec.name,
        pid=pid,
        host=host,
        node_id=node_id,
        code=None if status is None else status.code,
        signal=name,
        core_dumped=status is not None and status.core_dumped,
        oom=oom,
        gpu_fault=fault,
        stderr_tail=tail,
        output=spec.output,
        uptime_s=time.monotonic() - worker.launched.started,
        requested=_requested(worker.sent, status),
        note=_note(pid, status),
    )


def _requested(sent: set[int], status: linux.ExitStatus | None) -> bool:
    if status is None or status.signal is None:
        return bool(sent & {signal.SIGTERM, signal.SIGKILL, signal.SIGINT})
    return status.signal in sent


def _note(pid: int, status: linux.ExitStatus | None) -> str | None:
    if status is None:
        seen = linux.stat(pid)
        state = "?" if seen is None else seen.state
        return f"SIGKILL has been sent and the kernel has not ended it yet (state {state})"
    if status.code is None and status.signal is None:
        return "another part of the agent took its exit status"
    return None
