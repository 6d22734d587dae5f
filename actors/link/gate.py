"""The gate of a process: it listens, dials, and lets in only who proves the job's secret.

Nothing that a peer sent is unpickled, or even decoded as a frame, before both sides have proved the secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from .address import Address, connect_unix, listen, open_socket, peer_uid, tune
from .handshake import Handshake, HandshakeError, Identity
from .io import IoThread
from .stream import Link, OnBroken, OnFrame

logger = logging.getLogger("roost.link")

HANDSHAKE_TIMEOUT = 10.0  # seconds for both sides to prove the secret
ACCEPT_BURST = 64


class DialError(ConnectionError):
    """A peer could not be reached; the text says why."""


class DialRefused(DialError):
    """A peer was reached and does not belong to this job, or speaks another version."""


class Gate:
    """Accepts and dials links for one process. Use on the I/O thread, but for `listen` and the constructor."""

    def __init__(
        self,
        io: IoThread,
        secret: bytes,
        me: Identity,
        on_link: Callable[[Link, bytes], None],
        on_frame: OnFrame,
        on_broken: OnBroken,
    ) -> None:
        self._io = io
        self._secret = secret
        self._me = me
        self._on_link = on_link
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._others: dict[str, tuple[Address, bytes]] = {}
        self._listeners: list[tuple[socket.socket, Address]] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._dialled: dict[str, bool] = {}  # dials under way, by address: whether there was a connection

    def __repr__(self) -> str:
        return f"<Gate of {self._me.name} at {', '.join(str(a) for _, a in self._listeners) or 'no address'}>"

    def listen(self, address: Address) -> Address:
        """Listen at `address`; gives the address that was bound. Raises OSError."""
        sock, bound = listen(address)
        self._listeners.append((sock, bound))
        self._io.call(self._io.loop.add_reader, sock.fileno(), self._accept, sock)
        return bound

    def set_identity(self, me: Identity) -> None:
        """What this process says of itself from now on (its address is known only after `listen`)."""
        self._me = me

    def learn(self, address: Address, secret: bytes, via: Address | None = None) -> None:
        """What is at `address` holds another secret than this process; dial `via` to get there. From any thread."""
        self._others[str(address)] = (via or address, secret)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("%s could not accept a connection: %s", self._me.name, error)
                return
            sock.setblocking(False)
            tune(sock)
            if sock.family == socket.AF_UNIX and peer_uid(sock) not in (os.getuid(), 0):
                logger.warning("%s refused a connection of user %d", self._me.name, peer_uid(sock))
                sock.close()
                continue
            self._spawn(self._welcome(sock))

    def _spawn(self, coroutine) -> None:  # type: ignore[no-untyped-def]
        task = self._io.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _welcome(self, sock: socket.socket) -> None:
        try:
            link, leftover = await self._shake(sock, self._secret, dialer=False)
        except (TimeoutError, HandshakeError, OSError) as error:
            logger.warning(
                "%s refused a connection: %s", self._me.name, error or "it did not finish the handshake in time"
            )
            sock.close()
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        self._on_link(link, leftover)

    async def dial(self, address: Address, timeout: float) -> Link:
        """Connect to a listening process and prove the secret to each other. Raises DialError."""
        wanted = str(address)
        address, secret = self._others.get(wanted, (address, self._secret))
        sock = open_socket(address)
        self._dialled[wanted] = False
        try:
            async with asyncio.timeout(timeout):
                if address.scheme == "unix":
                    connect_unix(sock, address.path)
                else:
                    await self._io.loop.sock_connect(sock, (address.host, address.port))
                self._dialled[wanted] = True
                link, leftover = await self._shake(sock, secret, dialer=True)
        except HandshakeError as error:
            sock.close()
            raise DialRefused(f"{address}: {error}") from error
        except TimeoutError as error:
            sock.close()
            raise DialError(f"{address} did not answer within {timeout:g} s: {self.standing(wanted)}") from error
        except OSError as error:
            sock.close()
            code = error.errno or 0  # below 0 where a name was not resolved
            reason = os.strerror(code).lower() if code > 0 else error
            raise DialError(f"{address} cannot be reached: {reason}") from error
        except asyncio.CancelledError:
            sock.close()
            raise
        finally:
            self._dialled.pop(wanted, None)
        self._on_link(link, leftover)
        return link

    def standing(self, address: str) -> str:
        """How far a dial that is under way has come, as a sentence. On the I/O thread."""
        if self._dialled.get(address):
            return "it takes connections and says nothing, so it may be something other than Roost"
        return "it did not answer"

    async def _shake(self, sock: socket.socket, secret: bytes, *, dialer: bool) -> tuple[Link, bytes]:
        shake = Handshake(secret=secret, me=self._me, dialer=dialer)
        loop = self._io.loop
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            await loop.sock_sendall(sock, shake.start())
            while not shake.done:
                data = await loop.sock_recv(sock, 8192)
                if not data:
                    raise ConnectionResetError("the other end closed the connection within the handshake")
                try:
                    answer = shake.receive(data)
                except HandshakeError as error:
                    if error.reply:  # the other side is told why before the stream ends
                        await loop.sock_sendall(sock, error.reply)
                    raise
                if answer:
                    await loop.sock_sendall(sock, answer)
        for note in shake.notes:
            logger.info("%s", note)
        assert shake.peer is not None
        link = Link(sock, shake.peer, self._io, self._on_frame, self._on_broken, dialer=dialer)
        return link, shake.leftover

    def close(self) -> None:
        """Stop listening and drop what is still shaking hands. On the I/O thread."""
        for sock, bound in self._listeners:
            self._io.loop.remove_reader(sock.fileno())
            sock.close()
            if bound.scheme == "unix" and os.path.exists(bound.path):
                os.unlink(bound.path)
        self._listeners.clear()
        for task in list(self._tasks):
            task.cancel()
