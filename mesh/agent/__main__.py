"""`python -m roost.mesh.agent`: run a host agent, configured from standard input."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys

import msgpack

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the configuration, then run until the controller is gone."""
    config = msgpack.unpackb(sys.stdin.buffer.read())
    parent = config.get("parent")
    if parent is not None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # a socket, a pidfd and a log for each worker: 64 soft descriptors end early
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.basicConfig(
        level=os.environ.get("ROOST_LOG", "WARNING"), format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    ready = os.dup(1)
    os.dup2(2, 1)  # standard output belongs to whoever reads the addresses
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    from .agent import Agent

    agent = Agent(config)
    asyncio.set_event_loop(agent.io.loop)
    try:
        agent.io.loop.run_until_complete(agent.run(ready))
    finally:
        agent.io.loop.close()


main()
