"""Measure Roost and its peers, in turn, in one run: `python benchmarks/run.py --out results.json`.

The order is case, round, peer: the peers of one case stand next to each other in time, and a drift of the
machine falls on all of them. Every measurement is a child process of its own in the peer's environment; when
it is over, or its time is up, whatever of its tree remains is killed by pid and named in the results.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where run as a file

from benchmarks.cases import CASES, Case
from benchmarks.processes import become_subreaper, command_of, descendants, kill, wait_gone
from benchmarks.report import render
from benchmarks.setup import ENVS, PEERS, REPO, python_of

PINNED_CORE = 1
CLOSING_SECONDS = 30.0
"""For a polite shutdown after the last metric, and again for the tree to be gone."""
GRACE_SECONDS = 5.0
"""For what a peer's main process leaves behind to end by itself, before it is named and killed."""
BUSY_LOAD = 1.0


@dataclass(slots=True)
class Result:
    """What one child process gave; `busy` is the share of the machine others used just before it."""

    peer: str
    case: str
    round: int
    pinned: bool
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    skipped: str | None = None
    seconds: float = 0.0
    busy: float = 0.0
    load: float = 0.0
    left: list[str] = field(default_factory=list)


def cpu_busy(seconds: float = 0.3) -> float:
    """Share of all cores in use over a short sleep: 0.5 on two cores is one core's worth of other work."""

    def ticks() -> tuple[int, int]:
        values = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(values), values[3] + values[4]

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1.0 - (idle_after - idle) / max(1, total_after - total)


def interpreter(peer: str, bare: bool = False) -> str:
    """The peer's python; the floor runs in the first environment that stands."""
    if peer != "raw":
        return str(python_of(peer, bare))
    return next((str(python_of(name)) for name in PEERS if python_of(name).exists()), sys.executable)


def follow(reader: int, process: subprocess.Popen[bytes], result: Result, timeout: float) -> None:
    """Take the child's lines until it has ended, or its time is up; closing has a time of its own."""
    deadline, buffer, measured, closed = time.monotonic() + timeout, b"", False, False
    while not (closed or (process.poll() is not None and not select.select([reader], [], [], 0)[0])):
        if time.monotonic() > deadline:
            late = f"closing after {CLOSING_SECONDS:.0f} s" if measured else f"measuring after {timeout:.0f} s"
            result.error = result.error or f"still {late}"
            return
        if not select.select([reader], [], [], 0.05)[0]:
            continue
        chunk = os.read(reader, 65536)
        closed = not chunk
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in map(json.loads, lines):
            if "metric" in line:
                result.metrics[line["metric"]] = line["value"]
            elif "measured" in line:
                measured, deadline = True, time.monotonic() + CLOSING_SECONDS
            else:
                result.error = line.get("error", result.error)
                result.skipped = line.get("skipped", result.skipped)
    try:
        code = process.wait(timeout=CLOSING_SECONDS)
    except subprocess.TimeoutExpired:
        result.error = result.error or f"still closing after {CLOSING_SECONDS:.0f} s"
        return
    if code and result.error is None:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        result.error = f"{name} {'while closing' if measured else 'before the end'}"


def run_child(peer: str, case: Case, turn: int, pinned: bool, quick: bool, log: IO[bytes]) -> Result:
    """One measurement in a process of its own; returns when nothing of its tree is alive."""
    result = Result(peer, case.name, turn, pinned, busy=cpu_busy(), load=os.getloadavg()[0])
    reader, writer = os.pipe()
    command = [interpreter(peer, case.bare), "-m", "benchmarks.child", peer, case.name, "--fd", str(writer)]
    command += ["--quick"] * quick + ["--pin", str(PINNED_CORE)] * pinned
    scratch = tempfile.mkdtemp(prefix="rb")  # short: sockets in it have 107 bytes for their whole path
    environment = os.environ | {
        "TMPDIR": scratch,
        "PYTHONPATH": str(REPO),
        "ROOST_BENCH_RUNNER": str(os.getpid()),
        "GIT_CEILING_DIRECTORIES": str(ENVS),  # xoscar asks git for its version where it finds a repository
    }
    log.write(f"\n=== {peer} {case.name} round {turn}{' pinned' * pinned}\n".encode())
    log.flush()
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=REPO,
        env=environment,
        pass_fds=[writer],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    os.close(writer)
    try:
        follow(reader, process, result, case.timeout)
    finally:
        os.close(reader)
        end_tree(process, result)
        shutil.rmtree(scratch, ignore_errors=True)
    result.seconds = round(time.monotonic() - start, 2)
    return result


def end_tree(process: subprocess.Popen[bytes], result: Result) -> None:
    """Give the peer's processes a moment to end by themselves, then name and kill the rest."""
    ended = process.poll() is not None
    left = wait_gone(os.getpid(), GRACE_SECONDS if ended else 0.0, known=(process.pid,))
    result.left = [command_of(proc.pid) for proc in left] if ended else []
    deadline = time.monotonic() + CLOSING_SECONDS
    while left:
        if time.monotonic() > deadline:
            raise RuntimeError(f"cannot end {[(proc.pid, command_of(proc.pid)) for proc in left]}")
        kill(left)  # again and again: a supervisor killed late may have forked meanwhile
        left = wait_gone(os.getpid(), 0.2, known=(process.pid,))
    process.wait()


def machine() -> dict[str, object]:
    """Where and when: enough to tell two runs apart."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
        "busy": cpu_busy(1.0),
    }


def versions(peers: list[str]) -> dict[str, str]:
    """The version of every peer and of its torch."""
    distributions = {"monarch": "torchmonarch", "raw": "torch"}
    code = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    found = {}
    for peer in peers:
        names = dict.fromkeys((distributions.get(peer, peer), "torch", "numpy"))
        run = subprocess.run([interpreter(peer), "-c", code, *names], capture_output=True, text=True)
        found[peer] = run.stdout.strip() or run.stderr.strip().rpartition("\n")[2]
    return found


def plan(cases: list[Case], peers: list[str], rounds: int) -> list[tuple[Case, bool, int, str]]:
    """What is run, in order; the floor goes with the cases that have one."""
    with_floor = ("roundtrip", "import")
    return [
        (case, pinned, turn, peer)
        for case in cases
        for pinned in ((False, True) if case.pin and len(os.sched_getaffinity(0)) > 1 else (False,))
        for turn in range(rounds)
        for peer in [*(["raw"] if case.name in with_floor else []), *peers]
    ]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; default: %(default)s")
    parser.add_argument("--cases", default="*", help=f"names or globs, of: {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="few repeats, without the heavy cases")
    parser.add_argument("--rounds", type=int, default=1, help="times through the peers for each case")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks.json"), help="default: %(default)s")
    parser.add_argument("--log", type=Path, help="the children's output; default: a temporary file")
    return parser.parse_args()


def chosen(patterns: str, quick: bool) -> list[Case]:
    """Cases by name or glob; a heavy one is left out of a quick run unless named in full."""
    wanted = patterns.split(",")
    unknown = [pattern for pattern in wanted if not fnmatch.filter(CASES, pattern)]
    if unknown:
        raise SystemExit(f"no case named {', '.join(unknown)}; there are: {', '.join(CASES)}")
    return [
        case
        for case in CASES.values()
        if any(fnmatch.fnmatch(case.name, pattern) for pattern in wanted)
        and (not quick or not case.heavy or case.name in wanted)
    ]


def line_of(result: Result) -> str:
    """One line of progress."""
    shown = result.error or result.skipped or "  ".join(f"{k} {v:.4g}" for k, v in result.metrics.items())
    name = f"{result.case}{' pinned' * result.pinned}"
    left = f"  [left {len(result.left)} processes]" if result.left else ""
    return f"{name:20} {result.peer:8} {result.seconds:6.1f} s  {shown}{left}"


def main() -> None:
    """Run, write the results after each measurement, and print the report."""
    arguments = parse()
    peers = arguments.peers.split(",")
    missing = [peer for peer in peers if peer not in PEERS or not python_of(peer).exists()]
    if missing:
        raise SystemExit(f"no environment for {', '.join(missing)}: run `make bench-setup` first")
    become_subreaper()
    if descendants(os.getpid()):
        raise SystemExit("started with child processes: they would be taken for a peer's")
    cases = chosen(arguments.cases, arguments.quick)
    steps = plan(cases, peers, arguments.rounds)
    record: dict[str, object] = {"machine": machine(), "versions": versions(peers), "quick": arguments.quick}
    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        print(f"warning: load average {load:.2f}: the machine is busy, figures will be noisy", flush=True)
    log_path = arguments.log or Path(tempfile.mkdtemp(prefix="roost-bench-")) / "children.log"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, object]] = []
    record["results"] = results
    with log_path.open("wb") as log:
        for case, pinned, turn, peer in steps:
            result = run_child(peer, case, turn, pinned, arguments.quick, log)
            results.append(asdict(result))
            print(line_of(result), flush=True)
            arguments.out.write_text(json.dumps(record, indent=1))
    print(f"\n{render(record)}\nresults: {arguments.out}   children's output: {log_path}")


if __name__ == "__main__":
    main()
