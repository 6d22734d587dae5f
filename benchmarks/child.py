"""One case of one peer, run by `benchmarks.run` in that peer's environment; reports JSON lines on a pipe."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import CASES, Bench
from benchmarks.peers.base import NotOffered

CLASSES = {"roost": "RoostPeer", "monarch": "MonarchPeer", "ray": "RayPeer", "xoscar": "XoscarPeer"}


@dataclass(frozen=True)
class Sample:
    """A record of `__main__`, as a notebook or a script would define it."""

    index: int
    reward: float
    text: str


class NoPeer:
    """Stands in where nothing of a peer is used: the raw cases, and imports in interpreters of their own."""

    def shutdown(self) -> None:
        """Nothing to end."""


def load(peer: str, case: str) -> Any:
    """The peer's object, of a module imported only here: its library may not stand in other environments."""
    if peer == "raw" or case == "import":
        return NoPeer()
    return getattr(importlib.import_module(f"benchmarks.peers.{peer}"), CLASSES[peer])()


def measure(arguments: argparse.Namespace, report: Any) -> None:
    """Run the case, send each metric when it is known, then close the peer down politely."""
    from benchmarks.raw import RAW

    peer = load(arguments.peer, arguments.case)
    bench = Bench(arguments.peer, peer, arguments.quick, Sample)
    body = RAW[arguments.case] if arguments.peer == "raw" else CASES[arguments.case].measure
    try:
        for metric, value in body(bench):
            report({"metric": metric, "value": value})
    except NotOffered as lack:
        report({"skipped": str(lack)})
    report({"measured": True})
    peer.shutdown()


def main() -> None:
    """Exit 0 when measured and closed, 1 when the case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("case")
    parser.add_argument("--fd", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pin", type=int, default=None)
    arguments = parser.parse_args()
    os.set_inheritable(arguments.fd, arguments.fd <= 2)
    if arguments.pin is not None:
        os.sched_setaffinity(0, {arguments.pin})  # before any thread or process: the whole tree inherits it

    def report(line: dict[str, object]) -> None:
        os.write(arguments.fd, (json.dumps(line) + "\n").encode())

    try:
        measure(arguments, report)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  a peer may raise, or interrupt us, as it likes
        traceback.print_exc()
        text = str(error).strip()
        report({"error": f"{type(error).__name__}: {text.splitlines()[0] if text else ''}".rstrip(": ")})
        sys.exit(1)


if __name__ == "__main__":
    main()
