"""Render a results file: `python benchmarks/report.py results.json [--markdown]`.

A figure is the median over the rounds, with its half range in per cent where that passes 10. The factor in
brackets says how many times better Roost is (below 1: worse), whichever direction is better.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("roost", "monarch", "ray", "xoscar", "raw")
NOTABLE_SPREAD = 0.10


@dataclass(frozen=True, slots=True)
class Key:
    """One metric of one case; `pinned` to one core or not."""

    case: str
    metric: str
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table."""

    label: str
    key: Key


@dataclass(frozen=True, slots=True)
class Target:
    """Roost's figure must be at most (`most`) or at least `factor` times the other's; else a bare bound."""

    text: str
    key: Key
    factor: float
    most: bool
    peer: str | None = None
    against: Key | None = None


def _spawn_rows() -> Iterator[Row]:
    yield Row("import", Key("import", "import_s"))
    for kind, words in (("spawn", ""), ("spawn-torch", ", torch imported in each")):
        for n in (2, 8, 32):
            yield Row(f"{n} processes{words}: warm", Key(f"{kind}-{n}", "spawn_s"))
            yield Row(f"{n} processes{words}: cold", Key(f"{kind}-{n}", "cold_s"))
            yield Row(f"{n} processes{words}: stop", Key(f"{kind}-{n}", "stop_s"))
    yield Row("`import torch` in the caller (in no other row)", Key("spawn-torch-2", "import_torch_s"))


def _latency_rows() -> Iterator[Row]:
    labels = {"sync_": "round trip, `.get()`", "await_": "round trip, `await`"}
    for prefix, label in labels.items():
        for share in ("p50", "p99"):
            for pinned in (False, True):
                yield Row(f"{label} {share}{', one core' * pinned}", Key("roundtrip", f"{prefix}{share}_us", pinned))
    for n in (2, 8, 32):
        for share in ("p50", "p99"):
            for pinned in (False, True):
                yield Row(
                    f"call on {n} ranks {share}{', one core' * pinned}",
                    Key(f"call-{n}", f"{share}_us", pinned),
                )
    for pinned in (False, True):
        for kind in ("tuple", "dataclass"):
            label = f"round trip with a {'`__main__` ' * (kind == 'dataclass')}{kind}{', one core' * pinned}"
            yield Row(label, Key("dataclass", f"{kind}_p50_us", pinned))


def _bulk_rows() -> Iterator[Row]:
    for kind, words in (("echo", "ndarray"), ("echo-tensor", "tensor")):
        for size in (1, 64, 512):
            yield Row(f"{words} {size} MiB echoed", Key(f"{kind}-{size}", "echo_gbps"))
            yield Row(f"{words} {size} MiB echoed, first call", Key(f"{kind}-{size}", "first_gbps"))
            yield Row(f"{words} {size} MiB echoed, read at both ends", Key(f"{kind}-{size}", "touched_gbps"))
    yield Row("one-sided read of 256 MiB", Key("read-256", "read_gbps"))
    copies = (
        ("copyto", "numpy copyto"),
        ("copy1", "torch copy_, 1 thread"),
        ("copy2", "torch copy_, 2 threads"),
    )
    for metric, words in copies:
        yield Row(f"memcpy beside it: {words}", Key("read-256", f"{metric}_gbps"))


def _memory_rows() -> Iterator[Row]:
    for kind, words in (("spawn", ""), ("spawn-torch", ", torch imported in each")):
        for n in (2, 8, 32):
            yield Row(f"{n} workers{words}: PSS of the whole tree", Key(f"{kind}-{n}", "pss_mb"))
            yield Row(f"{n} workers{words}: processes", Key(f"{kind}-{n}", "processes"))


def _failure_rows() -> Iterator[Row]:
    yield Row("a process is killed: until its pending call fails", Key("deaths", "killed_s"))
    yield Row("a process is killed: the slowest", Key("deaths", "killed_most_s"))
    yield Row("`os._exit(3)`: until its pending call fails", Key("deaths", "exited_s"))
    yield Row("`os._exit(3)`: the slowest", Key("deaths", "exited_most_s"))
    yield Row("one rank of 4 raises, the others run 5 s: until the error is raised", Key("deaths", "first_failure_s"))


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "Start and stop": _spawn_rows,
    "Latency": _latency_rows,
    "Calls in flight": lambda: iter(
        [
            Row("pipelined calls, `.get()`", Key("pipelined", "sync_per_s")),
            Row("pipelined calls, `await gather`", Key("pipelined", "await_per_s")),
        ]
    ),
    "Bulk data": _bulk_rows,
    "Memory": _memory_rows,
    "Failures": _failure_rows,
}


def _targets() -> Iterator[Target]:
    for prefix, words in (("sync_", "`.get()`"), ("await_", "`await`")):
        key = Key("roundtrip", f"{prefix}p50_us")
        yield Target(f"round trip {words} <= 1/6 of Monarch's", key, 1 / 6, True, "monarch", key)
        xoscar = Key("roundtrip", "await_p50_us")  # its own style: it has no blocking calls
        yield Target(f"round trip {words} <= 1/2 of xoscar's", key, 1 / 2, True, "xoscar", xoscar)
        floor = Key("roundtrip", "sync_p50_us")
        yield Target(f"round trip {words} <= 2x a raw blocking socket's", key, 2.0, True, "raw", floor)
        calls = Key("pipelined", f"{prefix}per_s")
        yield Target(f"pipelined calls {words} >= 10x Monarch's", calls, 10.0, False, "monarch", calls)
    call = Key("call-32", "p50_us")
    yield Target("call on 32 ranks <= 1/4 of Monarch's", call, 1 / 4, True, "monarch", call)
    for metric, words, factor in (("spawn_s", "start", 1 / 4), ("pss_mb", "memory", 1 / 3)):
        text = f"32 workers with torch: {words} <= 1/{round(1 / factor)} of Monarch's without"
        yield Target(text, Key("spawn-torch-32", metric), factor, True, "monarch", Key("spawn-32", metric))
    for case, words in (("echo-64", "ndarray"), ("echo-tensor-64", "tensor")):
        key = Key(case, "echo_gbps")
        yield Target(f"64 MiB {words} echoed >= 8x Monarch's", key, 8.0, False, "monarch", key)
        yield Target(f"64 MiB {words} echoed >= 1.5x Ray's", key, 1.5, False, "ray", key)
    read, memcpy = Key("read-256", "read_gbps"), Key("read-256", "copyto_gbps")
    yield Target("one-sided read >= 60 % of memcpy (numpy copyto)", read, 0.6, False, "roost", memcpy)
    for metric, words in (("killed_s", "a killed process"), ("exited_s", "a process that exits")):
        yield Target(f"{words} is told in <= 50 ms", Key("deaths", metric), 0.05, True)
    yield Target("`__main__` dataclass <= 1.3x a tuple", Key("dataclass", "over_tuple"), 1.3, True)


class Results:
    """The figures of a results file, by peer and key."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self._entries: list[dict[str, Any]] = record["results"]

    def values(self, peer: str, key: Key) -> list[float]:
        """One value a round."""
        return [entry["metrics"][key.metric] for entry in self._of(peer, key) if key.metric in entry["metrics"]]

    def median(self, peer: str, key: Key) -> float | None:
        """Over the rounds; None where nothing was measured."""
        values = self.values(peer, key)
        return statistics.median(values) if values else None

    def trouble(self, peer: str, key: Key) -> str | None:
        """The first error of a case without a figure."""
        return next((str(entry["error"]) for entry in self._of(peer, key) if entry["error"]), None)

    def has(self, row: Row) -> bool:
        """Whether any peer was asked for this row."""
        return any(self._of(peer, row.key) for peer in COLUMNS)

    def peers(self) -> list[str]:
        """Columns with at least one entry."""
        return [peer for peer in COLUMNS if any(entry["peer"] == peer for entry in self._entries)]

    def entries(self) -> list[dict[str, Any]]:
        """Every measurement, in order."""
        return self._entries

    def _of(self, peer: str, key: Key) -> list[dict[str, Any]]:
        wanted = (peer, key.case, key.pinned)
        return [entry for entry in self._entries if (entry["peer"], entry["case"], entry["pinned"]) == wanted]


def quantity(metric: str, value: float) -> str:
    """A value in the unit that its metric's suffix says: ("spawn_s", 0.0312) -> "31.2 ms"."""
    if metric.endswith("_us"):
        value, metric = value * 1e-6, "_s"
    if metric.endswith("_per_s"):
        return f"{value:,.0f} /s"
    if metric.endswith("_s"):
        scale, unit = next((pair for pair in ((1.0, "s"), (1e-3, "ms")) if value >= pair[0]), (1e-6, "µs"))
        return f"{_digits(value / scale)} {unit}"
    if metric.endswith("_gbps"):
        return f"{_digits(value)} GB/s"
    return f"{value:,.0f} MB" if metric.endswith("_mb") else _digits(value)


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(results: Results, peer: str, key: Key) -> str:
    """One cell: figure, spread over the rounds, factor against Roost."""
    value = results.median(peer, key)
    if value is None:
        return results.trouble(peer, key) or "—"
    text = quantity(key.metric, value)
    values = results.values(peer, key)
    spread = (max(values) - min(values)) / 2 / value if value else 0.0
    if spread > NOTABLE_SPREAD:
        text += f" ±{spread:.0%}"
    ours = results.median("roost", key)
    if peer != "roost" and ours and value and key.metric != "processes":
        more_is_better = key.metric.endswith(("_per_s", "_gbps"))
        text += f" ({_digits(ours / value if more_is_better else value / ours)}x)"
    return text


def judge(results: Results, target: Target) -> tuple[str, str, str, str, str]:
    """A row of the table of targets: text, Roost's figure, the other's, what was got, the mark."""
    ours = results.median("roost", target.key)
    shown = "—" if ours is None else quantity(target.key.metric, ours)
    theirs: float | None = 1.0
    other = ""
    if target.peer is not None and target.against is not None:
        theirs = results.median(target.peer, target.against)
        other = "—" if theirs is None else quantity(target.against.metric, theirs)
    if ours is None or not theirs:
        return target.text, shown, other, "", "not measured"
    got = ours / theirs
    passed = got <= target.factor if target.most else got >= target.factor
    small = got < 1 and target.peer not in (None, "roost")
    share = f"1/{_digits(1 / got)}" if small else f"{got:.2f}x"
    if target.peer is None and target.key.metric.endswith("_s"):  # a bound in seconds: the figure says it all
        share = ""
    return target.text, shown, other, share, "PASS" if passed else "short"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Rows aligned for a terminal, or as markdown."""
    lines = [list(head), *([text.replace("|", "\\|") if markdown else text for text in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in padded)
    padded.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def remarks(results: Results) -> Iterator[str]:
    """What a reader must know before believing a figure."""
    machine = results.record["machine"]
    load, quick = machine["load"][0], ", --quick" if results.record["quick"] else ""
    yield f"{machine['when']}, {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}{quick}"
    for peer, version in results.record["versions"].items():
        yield f"{peer}: {version}"
    yield f"load average at the start {load:.2f}, cores busy with other work {machine['busy']:.0%}"
    noisy = sorted({entry["case"] for entry in results.entries() if entry["busy"] > 0.10})
    if load > 1 or noisy:
        yield f"WARNING: the machine was busy (before: {', '.join(noisy) or 'the run'}); figures are noisy"
    for entry in results.entries():
        who = f"{entry['peer']} {entry['case']}{' on one core' * entry['pinned']}"
        if entry["error"]:
            yield f"failed: {who}: {entry['error']}"
        if entry["left"]:
            yield f"left behind by {who}: {len(entry['left'])} x `{entry['left'][0]}`"


def render(record: dict[str, Any], markdown: bool = False) -> str:
    """The whole report."""
    results, parts = Results(record), []
    parts.append("\n".join(f"* {line}" if markdown else line for line in dict.fromkeys(remarks(results))))
    for section, rows in SECTIONS.items():
        wanted = [row for row in rows() if results.has(row)]
        if wanted:
            columns = [peer for peer in results.peers() if any(results.values(peer, row.key) for row in wanted)]
            body = [[row.label, *(cell(results, peer, row.key) for peer in columns)] for row in wanted]
            parts.append(f"{'### ' * markdown}{section}\n\n" + table([" ", *columns], body, markdown))
    body = [list(judge(results, target)) for target in _targets()]
    head = ("target", "roost", "against", "got", "mark")
    parts.append(f"{'### ' * markdown}Targets\n\n" + table(head, body, markdown))
    return "\n\n".join(parts)


def main() -> None:
    """Print the report of a results file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--markdown", action="store_true", help="tables as markdown")
    arguments = parser.parse_args()
    print(render(json.loads(arguments.results.read_text()), arguments.markdown))


if __name__ == "__main__":
    main()
