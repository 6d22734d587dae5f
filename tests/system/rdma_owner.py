"""A second process for the data plane's tests: opens arrays on request, told what to do over a pipe.

Requests are pickled tuples (name, *arguments) in length-prefixed frames on standard input; answers go to a
copy of standard output. Any request may carry handles. `Pipe` is the other end.
"""

from __future__ import annotations

import gc
import os
import pickle
import struct
import subprocess
import sys
import threading
from typing import BinaryIO

from roost.rdma import RDMABuffer, sending_to, service, set_home
from roost.rdma.registry import registry

TESTER = 7


class FakeHome:
    """A process without a runtime: what it would tell others is handed to `out`."""

    def __init__(self, proc_id: int, node_id: str, secret: bytes, out=lambda to, kind, body: None) -> None:
        self.proc_id, self.node_id, self.secret, self.host = proc_id, node_id, secret, "127.0.0.1"
        self.out, self.watchers = out, {}

    def on_process_death(self, proc_id, callback):
        self.watchers.setdefault(proc_id, []).append(callback)

    def tell(self, proc_id, kind, body):
        self.out(proc_id, kind, body)

    def place(self):
        return None

    def learn(self, place):
        assert place is None


def write_frame(stream: BinaryIO, value: object) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> object:
    head = stream.read(4)
    if len(head) < 4:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<I", head)[0]))


class Owner:
    """What the second process can be asked; `kept` holds its arrays and handles by name."""

    def __init__(self, home: FakeHome) -> None:
        self.home, self.arrays, self.handles = home, {}, {}

    def open(self, name, make):
        """Evaluate an expression to an array, open it, and answer its handle."""
        import numpy
        import torch

        self.arrays[name] = eval(make, {"np": numpy, "torch": torch})
        self.handles[name] = RDMABuffer(self.arrays[name])
        with sending_to([TESTER]):
            return pickle.dumps(self.handles[name])

    def take(self, name, data):
        self.handles[name] = pickle.loads(data)

    def read(self, name, make):
        import numpy
        import torch

        out = eval(make, {"np": numpy, "torch": torch})
        self.handles[name].read_into(out).get(10)
        return bytes(numpy.asarray(out))

    def value(self, name):
        return self.arrays[name]

    def run(self, code):
        scope = {"owner": self}
        exec(code, scope)
        return scope.get("answer")

    def forget(self, name):
        self.handles.pop(name, None)
        self.arrays.pop(name, None)
        gc.collect()

    def drop(self, name):
        self.handles[name].drop()

    def receive(self, sender, kind, body):
        service.receive(sender, kind, body)
        return registry().statistics()

    def clear(self):
        """Drop everything; answers what is left, which is nothing."""
        for export in list(registry()._exports.values()):
            registry().drop(export)
        self.handles.clear()
        self.arrays.clear()
        return self.statistics()

    def died(self, proc_id):
        for callback in self.home.watchers.pop(proc_id, []):
            callback(proc_id)
        return registry().statistics()

    def statistics(self):
        gc.collect()
        return registry().statistics()

    def spin(self):
        """Keep the GIL busy from another thread until the process ends, and answer when it does."""
        begun = threading.Event()

        def loop() -> None:
            begun.set()
            while True:
                sum(range(1000))

        threading.Thread(target=loop, daemon=True).start()
        begun.wait(5)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    proc_id, node_id, secret = int(sys.argv[1]), sys.argv[2], bytes.fromhex(sys.argv[3])
    told: list[tuple[int, str, tuple[object, ...]]] = []
    home = FakeHome(proc_id, node_id, secret, lambda *message: told.append(message))
    set_home(home)
    owner = Owner(home)
    while True:
        try:
            name, *arguments = read_frame(sys.stdin.buffer)
        except EOFError:
            os._exit(0)
        if name == "told":
            write_frame(answers, ("ok", told[:]))
            continue
        try:
            write_frame(answers, ("ok", getattr(owner, name)(*arguments)))
        except Exception as error:  # noqa: BLE001 - answered to the test
            write_frame(answers, ("error", repr(error)))


class Process:
    """The test's end of a second process."""

    def __init__(self, proc_id: int, node_id: str, secret: bytes) -> None:
        self.proc_id = proc_id
        self.child = subprocess.Popen(
            [sys.executable, __file__, str(proc_id), node_id, secret.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self.child.pid

    def ask(self, name: str, *arguments: object) -> object:
        write_frame(self.child.stdin, (name, *arguments))
        kind, value = read_frame(self.child.stdout)
        if kind == "error":
            raise AssertionError(f"the other process: {value}")
        return value

    def open(self, name: str, make: str) -> RDMABuffer:
        return pickle.loads(self.ask("open", name, make))

    def close(self) -> None:
        """Kill it and leave no pipe; may be called again."""
        self.child.kill()
        self.child.wait(10)
        self.child.stdin.close()
        self.child.stdout.close()


if __name__ == "__main__":
    main()
