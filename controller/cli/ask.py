"""Asking a host agent: a small node of its own that dials the agent's socket, asks, and leaves."""

from __future__ import annotations

import logging
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any

from ...actors.errors import RoostError
from ...actors.link.address import parse
from ...actors.link.gate import DialError
from ...actors.link.io import IoThread
from ...actors.node import Node
from ...actors.refs import new_id
from ...actors.requests import request
from ...mesh.card import SECRET
from ...mesh.identity import identity_of
from .found import Agent

DIAL_TIMEOUT = 2.0


class NoAnswer(Exception):
    """The agent said nothing, or what cannot be understood; the text says which."""


class Asker:
    """A link to one agent, for as long as the `with` lasts. Raises NoAnswer, within seconds."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._io = IoThread()
        try:
            secret = (agent.run_dir / SECRET).read_bytes()
            identity = identity_of(new_id(), str(agent.card["node_id"]), "roost command", "controller", "")
            self._node = Node(identity, secret, self._io)
            self._io.submit(self._node.gate.dial(parse(agent.socket), DIAL_TIMEOUT)).result(DIAL_TIMEOUT + 1)
            self._peer = self._node.peer(int(agent.card["proc_id"]))
        except (OSError, DialError, FutureTimeout) as error:
            self._io.stop()
            raise NoAnswer(str(error) or "it did not answer in time") from None

    def ask(self, method: str, *arguments: Any, timeout: float) -> Any:
        """One request."""
        try:
            return request(self._node, self._peer, method, *arguments).get(timeout)
        except (RoostError, TimeoutError) as error:
            raise NoAnswer(str(error)) from None

    def __enter__(self) -> Asker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def leave() -> None:
            self._node.close()

        try:
            self.ask("goodbye", timeout=0.5)
        except NoAnswer as silent:
            logging.getLogger("roost.cli").debug("%s", silent)
        self._io.submit(leave()).result(2)
        self._io.stop()
