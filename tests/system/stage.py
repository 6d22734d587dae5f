"""The actors that `test_endpoints.py` calls: each promise in a sync, an async and a mixed one. Imported by workers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from troupe import stop_at

from roost.actors import Actor, Mailbox, Port, context, current_rank, endpoint

PATIENCE = 30.0


class Deeds:
    """Endpoints, all sync, that actors of every kind have."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    @endpoint
    def note(self, item: Any) -> int:
        self.log.append(item)
        return len(self.log)

    @endpoint
    def noted(self) -> list[Any]:
        return self.log

    @endpoint
    def stand(self, barrier: str, port: Port[Any]) -> str:
        port.send("stands")
        stop_at(barrier)
        return "passed"

    @endpoint
    def until_cancelled(self, port: Port[Any]) -> None:
        port.send(context().remaining)
        until = time.monotonic() + PATIENCE
        while not context().cancelled and time.monotonic() < until:
            time.sleep(0.001)
        port.send(("cancelled", context().cancelled, context().remaining))

    @endpoint(interruptible=True)
    def loop_for_ever(self, port: Port[Any]) -> None:
        port.send("loops")
        try:
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                pass
            port.send("never")
        except Exception as error:
            port.send((type(error).__mro__[1].__name__, str(error)))
            raise

    @endpoint(interruptible=True)
    def ask_for_ever(self, other: Any, barrier: str, port: Port[Any]) -> None:
        port.send("asks")
        try:
            other.stand.call_one(barrier, port).get(timeout=PATIENCE)
        except Exception as error:
            port.send(type(error).__name__)
            raise

    @endpoint(interruptible=True)
    def brief(self, value: Any) -> Any:
        return value

    @endpoint
    def count(self, upto: int, port: Port[Any] | None = None, fail_after: int | None = None) -> Iterator[int]:
        try:
            for i in range(upto):
                if i == fail_after:
                    raise KeyError(i)
                if port is not None:
                    port.send(i)
                yield i
        except GeneratorExit:
            if port is not None:
                port.send("closed")
            raise

    @endpoint
    def big(self, count: int) -> Iterator[bytearray]:
        for i in range(count):
            yield bytearray([i]) * (6 << 20)

    @endpoint(batch=4, batch_wait=0.2)
    def double(self, items: list[int]) -> list[int]:
        self.log.append(list(items))
        return [2 * item for item in items]

    @endpoint(batch=3, batch_wait=0.05)
    def shorten(self, items: list[int]) -> list[int]:
        return items[1:]

    @endpoint(batch=2, batch_wait=0.05)
    def refuse(self, items: list[int]) -> list[int]:
        raise LookupError(f"not {sorted(items)}")

    @endpoint(lane="health")
    def alive(self) -> tuple[str, dict[str, int]]:
        return threading.current_thread().name, dict(current_rank())

    @endpoint(lane="io")
    def io(self, item: Any, barrier: str = "", port: Port[Any] | None = None) -> Any:
        if port is not None:
            port.send(item)
        if barrier:
            stop_at(barrier)
        self.log.append(item)
        return item

    @endpoint
    def odd(self, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"{value} is even")
        return value

    @endpoint
    def surrogate(self) -> None:
        raise ValueError("a lone \udcff one")

    def plain(self, a: int, b: int = 1) -> int:
        return a + b

    def plain_port(self, port: Port[Any], a: int) -> None:
        port.send(a + 1)

    @endpoint
    def who(self) -> dict[str, Any]:
        me = context().actor_instance
        return {
            "name": me.name,
            "class_name": me.class_name,
            "creator": me.creator,
            "proc": me.proc.name,
            "proc_name": me.proc_name,
            "rank": dict(me.rank),
        }

    @endpoint
    def end(self, how: str, reason: str | None = None) -> str:
        getattr(context().actor_instance, how)(reason)
        return "said"


class SyncOne(Deeds, Actor, lanes={"io": 2, "health": 1}):
    def __init__(self, port: Port[Any] | None = None) -> None:
        super().__init__()
        self.port = port

    def __cleanup__(self, error: Exception | None) -> None:
        if self.port is not None:
            self.port.send(str(error))


class MixedOne(Deeds, Actor, lanes={"io": 2, "health": 1}):
    """The same with a loop."""

    def __init__(self, port: Port[Any] | None = None) -> None:
        super().__init__()
        self.port = port

    @endpoint
    async def tick(self) -> None:
        await asyncio.sleep(0)

    async def __cleanup__(self, error: Exception | None) -> None:
        if self.port is not None:
            self.port.send(str(error))


class AsyncOne(Actor, lanes={"io": 2, "health": 1}):
    """All async."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    @endpoint
    async def noted(self) -> list[Any]:
        return self.log

    @endpoint
    async def until_cancelled(self, port: Port[Any]) -> None:
        port.send(context().remaining)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            port.send(("cancelled", context().cancelled, context().remaining))
            raise

    @endpoint
    async def swallow(self) -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return "swallowed"
        return "never"

    @endpoint
    async def count(
        self, upto: int, port: Port[Any] | None = None, fail_after: int | None = None
    ) -> AsyncIterator[int]:
        try:
            for i in range(upto):
                if i == fail_after:
                    raise KeyError(i)
                if port is not None:
                    port.send(i)
                yield i
                await asyncio.sleep(0)
        except (GeneratorExit, asyncio.CancelledError):
            if port is not None:
                port.send("closed")
            raise

    @endpoint(concurrent=True)
    async def wait_within(self, port: Port[Any]) -> AsyncIterator[int]:
        yield 0
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            port.send("closed")

    @endpoint(batch=4, batch_wait=0.2)
    async def double(self, items: list[int]) -> list[int]:
        self.log.append(list(items))
        await asyncio.sleep(0)
        return [2 * item for item in items]

    @endpoint(batch=3, batch_wait=0.05)
    async def shorten(self, items: list[int]) -> list[int]:
        return items[1:]

    @endpoint(batch=2, batch_wait=0.05)
    async def refuse(self, items: list[int]) -> list[int]:
        raise LookupError(f"not {sorted(items)}")

    @endpoint(concurrent=True, batch=2, batch_wait=60.0)
    async def pair(self, items: list[int]) -> list[int]:
        return [sum(items)] * len(items)

    @endpoint
    async def hold(self, port: Port[Any], seconds: float = PATIENCE) -> None:
        port.send("holds")
        await asyncio.sleep(seconds)

    @endpoint(lane="health")
    async def alive(self) -> tuple[str, dict[str, int]]:
        await asyncio.sleep(0)
        return threading.current_thread().name, dict(current_rank())

    @endpoint(lane="io")
    async def io(self, item: Any, seconds: float = 0.0, port: Port[Any] | None = None) -> Any:
        if port is not None:
            port.send(item)
        await asyncio.sleep(seconds)
        self.log.append(item)
        return item

    @endpoint
    async def odd(self, value: int) -> int:
        await asyncio.sleep(0)
        if value % 2 == 0:
            raise ValueError(f"{value} is even")
        return value

    async def plain(self, a: int, b: int = 1) -> int:
        await asyncio.sleep(0)
        return a + b


class Refusing(Deeds, Actor, mailbox=Mailbox(limit=2, policy="fail")):
    """Answers Busy."""


class Dropping(Deeds, Actor, mailbox=Mailbox(limit=2, policy="drop_oldest")):
    """Drops what is old."""


class DroppingAsync(AsyncOne, mailbox=Mailbox(limit=2, policy="drop_oldest")):
    """The same, with a loop."""

    @endpoint
    async def note(self, item: Any) -> None:
        self.log.append(item)


class Blocking(Deeds, Actor, mailbox=Mailbox(limit=2, policy="block")):
    """Lets its senders wait."""
