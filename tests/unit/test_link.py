"""A link over a socket pair: whole frames in order whatever the socket takes, and a reason when it ends."""

from __future__ import annotations

import os
import queue
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roost.actors.link.handshake import Identity
from roost.actors.link.io import IoThread
from roost.actors.link.stream import RECEIVE_BUFFER, DescriptorFrame, Link
from roost.actors.wire import frame as f
from roost.actors.wire.errors import ProtocolError

WAIT = 20.0
PEER = Identity(5, "node", "other", "worker", 1, "", (3, 11), "0", None)


class End:
    """What one end of a link has received, and why it ended."""

    def __init__(self, io: IoThread, sock: socket.socket, **options: Any) -> None:
        self.frames: queue.SimpleQueue[tuple[tuple[int, ...], bytes, bytes]] = queue.SimpleQueue()
        self.ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.fault: Exception | None = None
        sock.setblocking(False)
        self.link = Link(sock, PEER, io, self._frame, lambda link, why: self.ended.put(why), dialer=False, **options)

    def _frame(self, link: Link, header: tuple[int, ...], envelope: Any, body: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.frames.put((header, bytes(envelope), bytes(body)))

    def next(self) -> tuple[tuple[int, ...], bytes, bytes]:
        return self.frames.get(timeout=WAIT)


@pytest.fixture
def io() -> Iterator[IoThread]:
    thread = IoThread()
    yield thread
    thread.stop()


Pair = Callable[..., tuple[End, socket.socket]]


@pytest.fixture(params=["unix", "tcp"])
def connected(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets of one family with small buffers."""
    if request.param == "unix":
        a, b = socket.socketpair()
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        a = socket.create_connection(listener.getsockname())
        b, _ = listener.accept()
        listener.close()
    for sock in (a, b):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def end(io: IoThread, connected: tuple[socket.socket, socket.socket]) -> Iterator[tuple[End, socket.socket]]:
    """A link that reads, and the raw socket at its other end."""
    made = End(io, connected[0])
    io.call(made.link.start)
    yield made, connected[1]
    made.link.close()


@pytest.fixture
def ends(io: IoThread, connected: tuple[socket.socket, socket.socket]) -> Iterator[tuple[End, End]]:
    """Links at both ends; only the second reads until the first is started too."""
    first, second = (End(io, sock) for sock in connected)
    yield first, second
    first.link.close()
    second.link.close()


def frame(number: int, body: bytes = b"") -> list[Any]:
    return f.build(f.CALL, 1, 2, f.packb([number]), [body] if body else [], seq=number)


def size(parts: list[Any]) -> int:
    return sum(map(len, parts))


def test_frames_arrive_whole_and_in_order_however_the_bytes_are_cut(end: tuple[End, socket.socket]) -> None:
    made, raw = end
    data = b"".join(b"".join(frame(i, bytes([i]) * (i * 37))) for i in range(50))
    raw.setblocking(True)
    if raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(0, len(data), 61):
        raw.sendall(data[at : at + 61])
    for i in range(50):
        header, envelope, body = made.next()
        assert (header[7], f.unpack_envelope(envelope), body) == (i, [i], bytes([i]) * (i * 37))


def test_what_the_socket_refuses_is_sent_when_it_takes_it(io: IoThread, ends: tuple[End, End]) -> None:
    first, second = ends
    sent = [frame(i, bytes([i % 251]) * 5000) for i in range(400)]
    for parts in sent:
        first.link.send(parts, size(parts))
    assert first.link.queued_bytes > 0, "nobody reads yet, and the buffers hold less"
    assert "bytes queued" in repr(first.link)
    io.call(second.link.start)
    for i in range(400):
        header, _, body = second.next()
        assert header[7] == i and body == bytes([i % 251]) * 5000
    assert first.link.bytes_out == sum(map(size, sent))


@pytest.mark.parametrize("length", [RECEIVE_BUFFER - 200, RECEIVE_BUFFER, RECEIVE_BUFFER + 1, 5 << 20])
def test_bodies_of_any_size_arrive_between_small_frames(io: IoThread, ends: tuple[End, End], length: int) -> None:
    first, second = ends
    body = os.urandom(length)
    for parts in (frame(1, b"small"), frame(2, body), frame(3), frame(4, body), frame(5, b"last")):
        first.link.send(parts, size(parts))
    io.call(second.link.start)
    assert [second.next()[2] for _ in range(5)] == [b"small", body, b"", body, b"last"]


def test_large_bodies_are_aligned_as_arrays_like_them(
    io: IoThread, connected: tuple[socket.socket, socket.socket]
) -> None:
    import numpy as np

    addresses: queue.SimpleQueue[int] = queue.SimpleQueue()
    end = End(io, connected[0])
    end.link._on_frame = lambda link, header, envelope, body: addresses.put(np.frombuffer(body, np.uint8).ctypes.data)
    io.call(end.link.start)
    for envelope in ([1], ["x" * 13], ["x" * 50]):
        connected[1].sendall(b"".join(f.build(f.CALL, 1, 2, f.packb(envelope), [bytes(1 << 20)])))
        assert addresses.get(timeout=WAIT) % 64 == 0
    end.link.close()


def test_deferred_frames_leave_in_their_order_without_being_flushed(io: IoThread, ends: tuple[End, End]) -> None:
    first, second = ends
    io.call(second.link.start)
    for i in range(100):
        parts = frame(i)
        first.link.send(parts, size(parts), defer=i % 3 != 0)
    assert [second.next()[0][7] for _ in range(100)] == list(range(100))
    parts = frame(100)
    first.link.send(parts, size(parts), defer=True)
    assert second.next()[0][7] == 100, "the I/O thread comes by"


def test_frames_in_one_buffer_and_in_parts_keep_their_order(io: IoThread, ends: tuple[End, End]) -> None:
    first, second = ends
    for i in range(300):
        parts = frame(i, bytes(1000))
        if i % 2:
            first.link.send(parts, size(parts), defer=i % 5 == 0)
        else:
            first.link.send_frame(b"".join(parts), i % 3 == 0)
    io.call(second.link.start)
    assert [second.next()[0][7] for _ in range(300)] == list(range(300))


def test_what_came_behind_the_handshake_is_read_first(end: tuple[End, socket.socket], io: IoThread) -> None:
    a, b = socket.socketpair()
    other = End(io, a)
    whole = b"".join(frame(1, b"one")) + b"".join(frame(2, b"two"))
    io.call(other.link.start, whole[:-5])
    b.sendall(whole[-5:])
    assert [other.next()[2] for _ in range(2)] == [b"one", b"two"]
    other.link.close()
    b.close()


# --- what ends a link


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n" + bytes(64), "not a Roost frame: it begins with 0x4547"),
        (f.HEADER.pack(f.MAGIC, 9, 16, 0, 0, 1, 2, 1, 1, 0, 0), "frame version 9, this side speaks 1"),
        (
            f.HEADER.pack(f.MAGIC, f.VERSION, 16, 1 << 31, 0, 1, 2, 1, 1, 0, 0),
            "envelope of 2147483648 bytes, the limit is",
        ),
        (
            f.HEADER.pack(f.MAGIC, f.VERSION, 16, 0, 1 << 60, 1, 2, 1, 1, 0, 0),
            "message of 1152921504606846976 bytes, the limit is",
        ),
    ],
    ids=["garbage", "version", "envelope", "body"],
)
def test_what_is_no_frame_of_ours_closes_the_link_with_the_reason(
    end: tuple[End, socket.socket], data: bytes, why: str
) -> None:
    made, raw = end
    raw.sendall(b"".join(frame(1, b"good")))
    assert made.next()[2] == b"good"
    raw.sendall(data)
    assert why in made.ended.get(timeout=WAIT)
    assert made.link.closed and made.frames.empty()
    raw.settimeout(WAIT)
    assert raw.recv(1) == b"", "the other side sees the end"


def test_an_oversized_frame_is_refused_before_its_memory_is_taken(
    io: IoThread, connected: tuple[socket.socket, socket.socket]
) -> None:
    made = End(io, connected[0], limits=f.Limits(envelope=1000, body=64 << 20))
    io.call(made.link.start)
    tracemalloc.start()
    try:
        connected[1].sendall(f.HEADER.pack(f.MAGIC, f.VERSION, 16, 0, (64 << 20) + 1, 1, 2, 1, 1, 0, 0))
        assert "the limit is 67108864" in made.ended.get(timeout=WAIT)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [10, 1 << 20], ids=["small", "large"])
def test_a_frame_that_its_receiver_cannot_read_closes_the_link(end: tuple[End, socket.socket], length: int) -> None:
    made, raw = end
    made.fault = ProtocolError("this envelope makes no sense")
    raw.sendall(b"".join(frame(1, bytes(length))))
    assert made.ended.get(timeout=WAIT) == "this envelope makes no sense"


@pytest.mark.parametrize(
    "sent", [b"", b"".join(frame(1, bytes(1000)))[:100], b"".join(frame(1, bytes(1 << 20)))[:300_000]]
)
def test_the_end_of_the_stream_is_told_once_and_loses_no_whole_frame(
    end: tuple[End, socket.socket], sent: bytes
) -> None:
    made, raw = end
    raw.sendall(b"".join(frame(7, b"whole")) + sent)
    raw.close()
    assert made.next()[2] == b"whole"
    assert "the other end closed the connection" in made.ended.get(timeout=WAIT)
    made.link.close("again")
    assert made.ended.empty() and made.frames.empty()


def test_a_closed_link_swallows_what_is_sent(end: tuple[End, socket.socket]) -> None:
    made, _ = end
    made.link.close("enough")
    assert made.ended.get(timeout=WAIT) == "enough"
    parts = frame(1)
    made.link.send(parts, size(parts))
    made.link.send_frame(b"".join(parts), False)
    made.link.flush()
    assert made.link.queued_bytes == 0 and "closed" in repr(made.link)


def test_a_broken_pipe_at_the_sender_ends_the_link(
    io: IoThread, connected: tuple[socket.socket, socket.socket]
) -> None:
    made = End(io, connected[0])
    connected[1].close()
    parts = frame(1, bytes(100_000))
    for _ in range(200):  # tcp tells with the answer to the first packets
        made.link.send(parts, size(parts))
    assert made.ended.get(timeout=WAIT).startswith(("BrokenPipeError", "ConnectionResetError"))


# --- descriptors


def test_descriptors_arrive_in_order_beside_their_frames(io: IoThread) -> None:
    a, b = socket.socketpair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    sender, receiver = End(io, a), End(io, b)
    assert sender.link.same_host_socket
    files = [os.memfd_create(f"file{i}") for i in range(40)]
    for i, file in enumerate(files):
        os.write(file, b"%d" % i)
        head = b"".join(frame(2 * i))
        sender.link.send([DescriptorFrame(head, file)], len(head))
        parts = frame(2 * i + 1, bytes(i * 3000))
        sender.link.send(parts, size(parts), defer=i % 2 == 0)
    io.call(receiver.link.start)
    seen = []
    for i in range(80):
        header, _, _ = receiver.next()
        assert header[7] == i
        if i % 2 == 0:
            seen.append(receiver.link.descriptors.popleft())
    contents = []
    for descriptor in seen:
        contents.append(os.pread(descriptor, 10, 0))
        assert not os.get_inheritable(descriptor), "programs that user code starts must not get it"
        os.close(descriptor)
    assert contents == [b"%d" % i for i in range(40)]
    for file in files:
        os.close(file)
    sender.link.close()
    receiver.link.close()


def test_what_a_peer_said_before_its_end_is_read_though_nothing_can_be_sent_to_it(io: IoThread) -> None:
    """A peer that dies after its last words: an acknowledgement sent to it then fails before they are read."""
    ours, theirs = socket.socketpair()
    for number in range(100):
        theirs.sendall(b"".join(frame(number)))
    theirs.close()
    made = End(io, ours)
    for _ in range(3):
        made.link.send(frame(7), size(frame(7)))
    assert not made.link.closed
    io.call(made.link.start)
    assert [made.next()[0][7] for _ in range(100)] == list(range(100))
    assert "other end closed" in made.ended.get(timeout=WAIT)
    assert made.link.closed and made.frames.empty()
