"""The record of a worker's death, in the user's terms."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How one worker ended and what evidence there is of the cause.

    Exactly one of `code` and `signal` is set; both are None when the status could not be had
    (the reason then stands in `note`). `oom` and `gpu_fault` are sentences, None without evidence.
    `requested` says that this launcher sent the signal that ended it.
    """

    proc_id: int
    name: str
    pid: int
    host: str
    node_id: str | None
    code: int | None
    signal: str | None
    core_dumped: bool
    oom: str | None
    gpu_fault: str | None
    stderr_tail: tuple[str, ...]
    output: str
    uptime_s: float
    requested: bool = False
    note: str | None = None

    def sentence(self) -> str:
        """One line saying who, where, how and why.

        >>> ExitReport(7, "trainer-3", 123, "hostX", None, None, "SIGKILL", False, None, None, (), "", 12.3).sentence()
        'worker trainer-3 (pid 123 on hostX) was killed by SIGKILL after 12.3 s'
        """
        parts = [f"worker {self.name} (pid {self.pid} on {self.host}) {self._ending()}"]
        parts += [part for part in (self.oom, self.gpu_fault, self.note) if part]
        return "; ".join(parts)

    def _ending(self) -> str:
        after = f"after {self.uptime_s:.1f} s"
        if self.signal is not None:
            core = " with a core dump" if self.core_dumped else ""
            verb = "was stopped on request by" if self.requested else "was killed by"
            return f"{verb} {self.signal}{core} {after}"
        if self.code is not None:
            return f"ended with exit code {self.code} {after}"
        return f"is gone, its exit status unknown, {after}"

    def to_wire(self) -> list[object]:
        return [
            list(value) if isinstance(value, tuple) else value
            for value in (getattr(self, f.name) for f in fields(self))
        ]

    @classmethod
    def from_wire(cls, wire: list[object]) -> ExitReport:
        """Inverse of `to_wire`; raises ValueError when the list is not one."""
        names = [f.name for f in fields(cls)]
        if len(wire) != len(names):
            raise ValueError(f"an exit report has {len(names)} fields, got {len(wire)}")
        values = dict(zip(names, wire, strict=True))
        tail = values["stderr_tail"]
        if not isinstance(tail, list | tuple):
            raise ValueError("stderr_tail of an exit report is a list of lines")
        values["stderr_tail"] = tuple(str(line) for line in tail)
        return cls(**values)  # type: ignore[arg-type]
