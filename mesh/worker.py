"""The worker: a process that runs actors. The launcher calls `main` in its main thread.

The I/O thread links to the host's agent and, on the same host, to whoever asked for the process; the main thread is
home to the first actor, others get a thread each. The process ends when its agent asks it to, or dies.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgpack

from ..actors.link.address import parse
from ..actors.link.gate import DialError
from ..actors.link.io import IoThread
from ..actors.link.readers import is_quiet
from ..actors.node import Node
from ..actors.peer import Peer
from ..actors.policy import WORKER_SETUP, Policy, set_policy
from ..actors.refs import ProcRef
from ..actors.runtime import Runtime, set_runtime
from ..actors.wire import pickling
from ..actors.wire.definitions import DEFINITIONS
from .homes import Homes
from .identity import identity_of
from .launch import dump, linux, on_user_fork
from .life import watch_exits
from .nametable import has_actor
from .stacks import REQUESTS

logger = logging.getLogger("roost.worker")

DIAL_TIMEOUT = 10.0
LAST_WORDS = 1.0  # seconds for answers still queued to leave when the process ends


class Worker:
    """The process, seen from inside."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.ref = ProcRef.from_wire(config["ref"])
        self.io = IoThread()
        identity = identity_of(self.ref.proc_id, self.ref.node_id, self.ref.name, "worker", self.ref.address)
        self.node = Node(identity, config["secret"], self.io)
        self.node.ref = self.ref
        self.node.host = self.ref.host
        self.runtime = Runtime(self.node)
        if config.get("root") is not None:
            self.runtime.root = ProcRef.from_wire(config["root"])
        set_runtime(self.runtime)
        self.homes = Homes(self.runtime, use_main_thread=True)
        self.node.system.update({"end": self.end, "statistics": self.statistics, **REQUESTS, "has actor": has_actor})
        self.runtime.events["output"] = show_below
        watch_exits(self.runtime)
        on_user_fork(self._forked)
        is_quiet(signal.getsignal(signal.SIGINT))  # the launcher's handler, which does nothing

    def _forked(self) -> None:
        """In a child that user code forked: let go of Roost's sockets, and of Roost."""
        self.node.abandon()
        set_runtime(None)

    async def join(self) -> None:
        """Link to the agent and, on the same host, to the owner."""
        self.node.routing.parent = self.ref.agent_id
        await self.node.gate.dial(parse(self.config["agent"]), DIAL_TIMEOUT)
        owner = ProcRef.from_wire(self.config["owner"])
        peer = self.node.peer_at(owner)
        if owner.node_id == self.ref.node_id and peer.link is None:
            try:
                await self.node.gate.dial(parse(owner.address), DIAL_TIMEOUT)
            except DialError as error:
                logger.info("%s: %s", self.ref.name, error)

    def run(self) -> None:
        """Start, then be home to one actor after the other, until the agent says that it is over."""
        dump.answer_dumps(
            f"{self.config['agent'].removeprefix('unix://').rpartition('/')[0]}/{self.ref.proc_id:x}.stacks",
            self.ref.name,
        )
        self.io.call(linux.set_comm, dump.IO_THREAD)
        self.node.gate.listen(parse(self.ref.address))
        bootstrap = self.config.get("bootstrap")
        if bootstrap is not None:
            run_bootstrap(bootstrap)
        self.io.submit(self.join()).result(DIAL_TIMEOUT * 2)
        self.homes.live_on_main_thread()
        self.leave()

    def leave(self) -> None:
        """Let the last answers leave."""
        self.runtime.end()

        async def drain() -> None:
            self.node.flush()
            loop = asyncio.get_running_loop()
            until = loop.time() + LAST_WORDS
            while loop.time() < until and any(link.queued_bytes for link in self.node.routing.links.values()):
                await asyncio.sleep(0.001)
            self.node.close()

        self.io.submit(drain()).result(LAST_WORDS + 2)
        sys.stdout.flush()
        sys.stderr.flush()

    # requests, on the I/O thread

    async def end(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """[reason, seconds]: stop every actor, then leave."""
        reason, timeout = arguments
        await self.homes.close(reason, timeout)
        return True

    def statistics(self, node: Node, peer: Peer, arguments: list[Any], body: Any) -> Any:
        """Mailboxes, links, pool."""
        return {
            "name": self.ref.name,
            "pid": os.getpid(),
            "actors": [
                cell.statistics() | {"running": [call.method for call in list(cell.waiting.values()) if call.running]}
                for cell in list(node.cells.values())
            ],
        }


def show_below(peer: Peer, proc_id: int, name: str, text: str, dropped: int, path: str) -> None:
    """Output of processes that this one has spawned on other hosts becomes output of its own."""
    lost = f"[{name}] ({dropped} bytes were dropped here; see {path})\n" if dropped else ""
    print(lost + "\n".join(f"[{name}] {line}" for line in text.split("\n")), file=sys.__stdout__, flush=True)


def run_bootstrap(packed: bytes) -> None:
    """Run the user's bootstrap, sync or async, before any actor."""
    function: Callable[[], Any] = pickling.unpack(packed)  # type: ignore[assignment]
    answer = function()
    if hasattr(answer, "__await__"):

        async def wait() -> None:
            await answer

        asyncio.run(wait())


def log_own_words() -> None:
    """Roost's own loggers write to stderr; the root logger, and so all of the user's, is left as Python makes it."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    own = logging.getLogger("roost")
    own.addHandler(handler)
    own.setLevel(os.environ.get("ROOST_LOG", "WARNING"))
    own.propagate = False


def main(payload: bytes) -> None:
    """The entry point that the launcher calls."""
    config = msgpack.unpackb(payload)
    log_own_words()
    for content, blob in config.get("definitions", ()):
        DEFINITIONS.learn(content, blob)
    set_policy(Policy.from_wire(config.get("policy", {})))
    WORKER_SETUP[:] = config.get("setup", ())
    for entry in WORKER_SETUP:
        module, _, function = entry.partition(":")
        getattr(importlib.import_module(module), function)()
    Worker(config).run()
