"""The cases and their timing loops: one code for every peer, so that the same work is measured.

A case is a generator of (metric, value); what it yielded before a failure is kept. A metric's suffix is its
unit: `_s`, `_us`, `_gbps` (1e9 bytes a second), `_per_s`, `_mb` (1e6 bytes); anything else is a plain number.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.base import AnyPeer
from benchmarks.processes import descendants, pss_bytes

MIB = 2**20
WINDOW = 2000
"""Calls in flight of the pipelined case."""

WARMING_CALLS, WARMING_SECONDS = 40, 5.0
"""Bulk calls before those that count, whichever comes first."""

Metrics = Iterator[tuple[str, float]]

IMPORTS = {
    "roost": "import roost; from roost.actors import Actor, endpoint; from roost.mesh import this_host",
    "monarch": "from monarch.actor import Actor, endpoint, this_host",
    "ray": "import ray",
    "xoscar": "import xoscar",
    "raw": "import torch",
}
"""What a user's program has at its top; `raw` shows what torch itself costs."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a case is given: the peer, whether few repeats will do, and the record class of `__main__`."""

    name: str
    peer: AnyPeer
    quick: bool
    record: Callable[[int, float, str], object]

    def repeats(self, full: int, quick: int) -> int:
        """How often to measure."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Case:
    """One thing measured, in `timeout` seconds at most; `pin`: also on one core; `heavy`: not in --quick.

    `bare`: without torch, which a peer may import by itself wherever it finds it.
    """

    name: str
    measure: Callable[[Bench], Metrics]
    timeout: float = 120.0
    pin: bool = False
    heavy: bool = False
    bare: bool = False


def percentile(values: list[float], share: float) -> float:
    """The smallest measured value that at least `share` of all do not exceed: (1, 2, 3, 4), 0.5 -> 2."""
    ranked = sorted(values)
    return ranked[max(0, -int(-share * len(ranked) // 1) - 1)]


def summary(prefix: str, nanoseconds: Iterable[int]) -> Metrics:
    """p50, p99 and least of latencies, in microseconds."""
    values = [value / 1e3 for value in nanoseconds]
    yield f"{prefix}p50_us", percentile(values, 0.50)
    yield f"{prefix}p99_us", percentile(values, 0.99)
    yield f"{prefix}min_us", min(values)


def time_calls(call: Callable[[], object], count: int) -> list[int]:
    """Nanoseconds of each of `count` calls, one after the other."""
    clock = time.perf_counter_ns
    taken = []
    for _ in range(count):
        start = clock()
        call()
        taken.append(clock() - start)
    return taken


def imports(bench: Bench) -> Metrics:
    """Import in a fresh interpreter, bytecode and page cache warm after the first."""
    code = (
        f"import sys, time; t = time.perf_counter(); {IMPORTS[bench.name]}; "
        "print(time.perf_counter() - t, 'torch' in sys.modules)"
    )
    taken, torch = [], False
    for _ in range(1 + bench.repeats(9, 3)):
        run = subprocess.run(
            [sys.executable, "-c", code],
            check=True, capture_output=True, text=True, cwd=tempfile.gettempdir(), env=_without_path(),
        )  # fmt: skip
        seconds, flag = run.stdout.split()[-2:]
        taken.append(float(seconds))
        torch = flag == "True"
    yield "import_s", statistics.median(taken[1:])
    yield "imports_torch", float(torch)


def _without_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def spawning(n: int, with_torch: bool) -> Callable[[Bench], Metrics]:
    """`n` processes, from the call to the first answer of every one; memory of the whole tree at that point.

    `cold_s` counts the runtime's start; `spawn_s` is later spawns in the same program.
    """

    def measure(bench: Bench) -> Metrics:
        peer = bench.peer
        if with_torch:
            start = time.perf_counter()
            import torch  # noqa: F401

            yield "import_torch_s", time.perf_counter() - start
        start = time.perf_counter()
        peer.start()
        again, stops = [], []
        slow = with_torch and n == 32  # a peer that imports torch 32 times takes minutes a turn
        for turn in range(1 + bench.repeats(1 if slow else 3, 1)):
            if turn:
                start = time.perf_counter()
            mesh = peer.spawn(n)
            answers = peer.first_answers(mesh, with_torch)
            again.append(time.perf_counter() - start)
            if len({pid for pid, _ in answers}) != n:
                raise RuntimeError(f"{n} processes asked for, got {len({pid for pid, _ in answers})}")
            if not turn:
                yield "cold_s", again.pop()
                yield "workers_with_torch", float(sum(torch for _, torch in answers))
                pids = [os.getpid(), *(proc.pid for proc in _whole_tree())]
                yield "pss_mb", pss_bytes(pids) / 1e6
                yield "processes", float(len(pids))
            start = time.perf_counter()
            peer.stop(mesh)
            stops.append(time.perf_counter() - start)
        yield "spawn_s", statistics.median(again)
        yield "stop_s", statistics.median(stops)

    return measure


def _whole_tree() -> list[Any]:
    """Below the runner where there is one: what a peer daemonised hangs there, not under this process."""
    runner = int(os.environ.get("ROOST_BENCH_RUNNER", "0"))
    return [proc for proc in descendants(runner or os.getpid()) if proc.pid != os.getpid()]


def roundtrip(bench: Bench) -> Metrics:
    """One small call at a time to one actor in another process, blocking and awaited."""
    peer = bench.peer
    peer.start()
    actor = peer.one(peer.spawn(1))
    count = bench.repeats(3000, 500)
    for _ in range(count // 10):
        peer.call(actor, 7)
    yield from summary("sync_", time_calls(lambda: peer.call(actor, 7), count))

    async def awaited() -> list[int]:
        clock = time.perf_counter_ns
        taken = []
        for turn in range(count + count // 10):
            start = clock()
            await peer.awaitable(actor, 7)
            if turn >= count // 10:
                taken.append(clock() - start)
        return taken

    yield from summary("await_", peer.run(awaited()))  # type: ignore[arg-type]


def pipelined(bench: Bench) -> Metrics:
    """One caller, one actor: `WINDOW` calls sent, then all their results taken, again and again."""
    peer = bench.peer
    peer.start()
    actor = peer.one(peer.spawn(1))
    batches = bench.repeats(15, 4)

    def batch() -> None:
        got = peer.collect([peer.submit(actor, value) for value in range(WINDOW)])
        if got[-1] != WINDOW - 1:
            raise RuntimeError("results out of order")

    batch()
    yield "sync_per_s", WINDOW * 1e9 / statistics.median(time_calls(batch, batches))

    async def gathered() -> list[int]:
        clock = time.perf_counter_ns
        taken = []
        for _ in range(batches + 1):
            start = clock()
            await asyncio.gather(*[peer.awaitable(actor, value) for value in range(WINDOW)])
            taken.append(clock() - start)
        return taken[1:]

    yield "await_per_s", WINDOW * 1e9 / statistics.median(peer.run(gathered()))  # type: ignore[arg-type]


def mesh_call(n: int) -> Callable[[Bench], Metrics]:
    """One small call to all of `n` ranks, blocking until every result is there."""

    def measure(bench: Bench) -> Metrics:
        peer = bench.peer
        peer.start()
        mesh = peer.spawn(n)
        peer.first_answers(mesh, False)
        for _ in range(20):
            if list(peer.call_all(mesh, 7)) != [7] * n:
                raise RuntimeError("a rank gave another answer")
        count = bench.repeats(2000 if n < 32 else 500, 100)
        yield from summary("", time_calls(lambda: peer.call_all(mesh, 7), count))

    return measure


def echo(megabytes: int, tensor: bool) -> Callable[[Bench], Metrics]:
    """A bulk value sent and sent back; bytes both ways count.

    `first_gbps` is the first call, `echo_gbps` the median once memory is being reused (Ray's store took up to
    30 calls of 64 MiB for that: 0.4 GB/s into fresh pages, 7 into used ones). In `touched_gbps` actor and
    caller read every byte as well. The value is changed before each call and compared after it, both outside
    the time.
    """

    def measure(bench: Bench) -> Metrics:
        import numpy

        from benchmarks.peers.base import read_every_byte

        peer = bench.peer
        peer.start()
        actor = peer.one(peer.spawn(1))
        nbytes = megabytes * MIB
        source = numpy.arange(nbytes // 8, dtype=numpy.int64)
        value: Any = source
        small: Any = numpy.zeros(8, dtype=numpy.int64)
        if tensor:
            import torch

            value = torch.from_numpy(source.view(numpy.uint8))  # int64 of 1 MiB: no answer from xoscar
            small = torch.zeros(8, dtype=torch.uint8)
        peer.touch(actor, small)  # the process and its imports are no part of the first call

        def turn(call: Callable[[], Any], mark: int) -> int:
            source[::512] = mark % 128
            start = time.perf_counter_ns()
            back = call()
            taken = time.perf_counter_ns() - start
            if not bool((back[::64] == value[::64]).all()):
                raise RuntimeError("the echo differs from what was sent")
            return taken

        count = {1: bench.repeats(200, 20), 64: bench.repeats(21, 5)}.get(megabytes, bench.repeats(5, 2))
        loops: dict[str, Callable[[], object]] = {
            "echo_gbps": lambda: peer.call(actor, value),
            "touched_gbps": lambda: read_every_byte(peer.touch(actor, value)),
        }
        for metric, call in loops.items():
            first = turn(call, 0)
            if metric == "echo_gbps":
                yield "first_gbps", 2 * nbytes / first
            deadline = time.monotonic() + WARMING_SECONDS
            for mark in range(1, WARMING_CALLS):
                turn(call, mark)
                if time.monotonic() > deadline:
                    break
            yield metric, 2 * nbytes / statistics.median(turn(call, mark) for mark in range(count))

    return measure


def one_sided(bench: Bench) -> Metrics:
    """A one-sided read of 256 MiB beside copies of the same size inside one process, in turn."""
    import numpy
    import torch

    peer = bench.peer
    peer.start()
    actor = peer.one(peer.spawn(1))
    nbytes = 256 * MIB
    handle = peer.share(actor, nbytes)
    into, source = torch.full((nbytes,), 1, dtype=torch.uint8), torch.full((nbytes,), 3, dtype=torch.uint8)

    def copy(threads: int) -> object:
        torch.set_num_threads(threads)
        return into.copy_(source)

    loops: dict[str, Callable[[], object]] = {
        "read_gbps": lambda: peer.read(handle, into),
        "copyto_gbps": lambda: numpy.copyto(into.numpy(), source.numpy()),
        "copy1_gbps": lambda: copy(1),
        "copy2_gbps": lambda: copy(2),
    }
    taken: dict[str, list[int]] = {metric: [] for metric in loops}
    for turn in range(1 + bench.repeats(9, 3)):
        for metric, call in loops.items():
            time.sleep(0.01)  # OpenMP's threads spin for a while after a parallel copy
            taken[metric] += time_calls(call, 1)
            if turn == 0 and metric == "read_gbps" and not bool((into == 7).all()):
                raise RuntimeError("the bytes read differ from those shared")
    for metric, values in taken.items():
        yield metric, nbytes / statistics.median(values[1:])


def record(bench: Bench) -> Metrics:
    """Round trips with a dataclass of `__main__` and with a plain tuple of the same fields, in turn."""
    peer = bench.peer
    peer.start()
    actor = peer.one(peer.spawn(1))
    plain = (7, 0.5, "sample")
    made = bench.record(*plain)
    if peer.call(actor, made) != made:
        raise RuntimeError("the dataclass came back changed")
    tuples, records = [], []
    count = bench.repeats(2000, 300)
    for turn in range(count + count // 10):
        taken = time_calls(lambda: peer.call(actor, plain), 1) + time_calls(lambda: peer.call(actor, made), 1)
        if turn >= count // 10:
            tuples.append(taken[0])
            records.append(taken[1])
    yield from summary("tuple_", tuples)
    yield from summary("dataclass_", records)
    yield "over_tuple", statistics.median(records) / statistics.median(tuples)


DEATHS_SECONDS = 20.0
"""For one way of dying, of a peer that takes seconds to tell; at least two deaths are measured."""

OTHERS_RUN_SECONDS = 5.0


def deaths(bench: Bench) -> Metrics:
    """From the end of a process until the call that waits for it fails at the caller; each in a fresh process.

    `killed`: SIGKILL from outside. `exited`: the endpoint calls `os._exit(3)`. `first_failure`: on four ranks one
    raises at once, the others go on for `OTHERS_RUN_SECONDS`; until the caller has the error.
    """
    peer = bench.peer
    peer.start()
    folder = tempfile.mkdtemp(prefix="deaths")
    for name, start, number in (("killed", peer.stall, signal.SIGKILL), ("exited", peer.leave, None)):
        taken: list[float] = []
        deadline = time.monotonic() + DEATHS_SECONDS
        while len(taken) < bench.repeats(21, 5) and (len(taken) < 2 or time.monotonic() < deadline):
            mesh = peer.spawn(1)
            peer.first_answers(mesh, False)
            path = os.path.join(folder, f"{name}-{len(taken)}")
            taken.append(_time_of_death(peer, peer.one(mesh), start, path, number))
            peer.stop(mesh)
        yield f"{name}_s", statistics.median(taken)
        yield f"{name}_most_s", max(taken)
        yield f"{name}_count", float(len(taken))
    waited = []
    for _ in range(bench.repeats(3, 1)):
        mesh = peer.spawn(4)
        pid = peer.first_answers(mesh, False)[0][0]
        begin = time.perf_counter_ns()
        if _failure_of(lambda mesh=mesh, pid=pid: peer.fail_one(mesh, pid, OTHERS_RUN_SECONDS)) is None:  # type: ignore[misc]
            raise RuntimeError("the failure of one rank was not told")
        waited.append((time.perf_counter_ns() - begin) / 1e9)
        peer.stop(mesh)
    yield "first_failure_s", statistics.median(waited)


def _time_of_death(
    peer: AnyPeer, actor: Any, start: Callable[[Any, str], Any], path: str, number: signal.Signals | None
) -> float:
    """Seconds from the death to the failure of the pending call. A thread kills: a peer's call may start late."""
    noted: list[int] = []

    def kill_when_running() -> None:
        until = time.monotonic() + 30
        while not os.path.exists(path) and time.monotonic() < until:
            time.sleep(0.001)
        with open(path) as file:
            pid, clock = map(int, file.read().split())
        if number is not None:
            clock = time.perf_counter_ns()
            os.kill(pid, number)
        noted.append(clock)

    killer = threading.Thread(target=kill_when_running)
    killer.start()
    error = _failure_of(lambda: peer.collect([start(actor, path)]))
    told = time.perf_counter_ns()
    killer.join()
    if error is None or not noted:
        raise RuntimeError("the death of the process was not told")
    return (told - noted[0]) / 1e9


def _failure_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - each peer has exceptions of its own
        return error
    return None


CASES = {
    case.name: case
    for case in (
        Case("import", imports),
        *(Case(f"spawn-{n}", spawning(n, False), timeout=180.0, bare=True) for n in (2, 8, 32)),
        *(Case(f"spawn-torch-{n}", spawning(n, True), timeout=420.0, heavy=n > 2) for n in (2, 8, 32)),
        Case("roundtrip", roundtrip, pin=True),
        Case("pipelined", pipelined),
        *(Case(f"call-{n}", mesh_call(n), pin=True) for n in (2, 8, 32)),
        *(Case(f"echo-{size}", echo(size, False), timeout=120.0, heavy=size > 64) for size in (1, 64, 512)),
        *(Case(f"echo-tensor-{size}", echo(size, True), timeout=120.0, heavy=size != 64) for size in (1, 64, 512)),
        Case("read-256", one_sided),
        Case("dataclass", record, pin=True),
        Case("deaths", deaths, timeout=240.0),
    )
}
