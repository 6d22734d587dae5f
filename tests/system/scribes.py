"""The actors of the model test; imported by workers, so it imports nothing heavy."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from roost.actors import Actor, Channel, Port, endpoint

WAIT = 30.0


class Scribe(Actor):
    """Writes down what it is told, and by whom; all sync."""

    def __init__(self, first: Any = None) -> None:
        self.notes: list[tuple[str, int]] = []
        self.kept = first

    @endpoint
    def note(self, sender: str, number: int) -> int:
        self.notes.append((sender, number))
        return number

    @endpoint
    def noted(self) -> list[tuple[str, int]]:
        return self.notes

    @endpoint
    def keep(self, value: Any) -> None:
        self.kept = value

    @endpoint
    def recall(self) -> Any:
        return self.kept

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def echo(self, value: Any, seconds: float = 0.0) -> Any:
        time.sleep(seconds)
        return value

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint
    def items(self, count: int) -> Iterator[int]:
        yield from range(count)

    @endpoint
    def pass_on(self, mesh: Any, sender: str, numbers: list[int]) -> list[list[int]]:
        """Note each of the numbers at every actor of another mesh, one call behind the other."""
        futures = [mesh.note.call(sender, number) for number in numbers]
        return [future.get(timeout=WAIT).values() for future in futures]

    @endpoint
    def take_mesh(self, mesh: Any) -> None:
        self.mesh = mesh

    @endpoint
    def ask_mesh(self, value: Any) -> list[Any]:
        """Call the mesh that was taken."""
        answers: list[Any] = self.mesh.echo.call(value).get(timeout=WAIT).values()
        return answers

    @endpoint
    def send(self, port: Port[Any], values: list[Any]) -> None:
        for value in values:
            port.send(value)

    @endpoint
    def open(self) -> Port[Any]:
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def receive(self, count: int) -> list[Any]:
        return [self.receiver.recv().get(timeout=WAIT) for _ in range(count)]


class MixedScribe(Scribe):
    """The same with async endpoints beside sync ones."""

    @endpoint
    async def note(self, sender: str, number: int) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        self.notes.append((sender, number))
        return number

    @endpoint
    async def echo(self, value: Any, seconds: float = 0.0) -> Any:  # type: ignore[override]
        await asyncio.sleep(seconds)
        return value

    @endpoint
    async def items(self, count: int) -> AsyncIterator[int]:  # type: ignore[override]
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    @endpoint
    async def pass_on(self, mesh: Any, sender: str, numbers: list[int]) -> list[list[int]]:  # type: ignore[override]
        futures = [mesh.note.call(sender, number) for number in numbers]
        return [(await future).values() for future in futures]


SCRIBES = [Scribe, MixedScribe]
