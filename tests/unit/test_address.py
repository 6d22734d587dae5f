"""Addresses: what is understood, what is refused, and paths that do not fit a socket address."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from roost.actors.link.address import (
    UNIX_PATH_MAX,
    Address,
    AddressError,
    connect_unix,
    listen,
    open_socket,
    parse,
    peer_uid,
)


@pytest.mark.parametrize(
    "text", ["unix:///run/roost/a.sock", "tcp://10.0.0.1:4000", "tcp://host.example:1", "tcp://0.0.0.0:0"]
)
def test_an_address_reads_back_as_it_was_written(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:1",
        "tcp://host",
        "tcp://host:",
        "tcp://:1",
        "tcp://host:65536",
        "tcp://host:-1",
        "unix://relative",
        "udp://h:1",
        "://",
    ],
)
def test_what_is_no_address_is_refused_with_what_was_wanted(text: str) -> None:
    with pytest.raises(AddressError, match=r"write unix:///path or tcp://host:port"):
        parse(text)


def test_an_ipv6_address_keeps_its_brackets() -> None:
    address = parse("tcp://[::1]:4000")
    assert (address.host, address.port) == ("::1", 4000)
    assert parse(str(address)) == address, "what was printed can be parsed"


@pytest.mark.parametrize("length", [UNIX_PATH_MAX - 1, UNIX_PATH_MAX, UNIX_PATH_MAX + 1, 400])
def test_unix_paths_of_any_length_are_bound_and_dialled(tmp_path: Path, length: int) -> None:
    folder = tmp_path
    while len(os.fsencode(str(folder))) + 120 < length:
        folder = folder / ("d" * 100)
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / ("s" * (length - len(os.fsencode(str(folder))) - 1)))
    if len(path) != length:
        pytest.skip("the temporary folder's own path is longer")
    before = os.listdir("/proc/self/fd")
    listener, bound = listen(Address("unix", path=path))
    assert bound.path == path and stat.S_IMODE(os.stat(path).st_mode) == 0o600
    dialling = open_socket(bound)
    connect_unix(dialling, path)
    accepted, _ = listener.accept()
    assert peer_uid(accepted) == os.getuid()
    accepted.setblocking(True)
    dialling.send(b"hello")
    assert accepted.recv(5) == b"hello"
    for sock in (listener, dialling, accepted):
        sock.close()
    assert os.listdir("/proc/self/fd") == before, "the folder's descriptor is closed"


def test_port_zero_is_resolved() -> None:
    listener, bound = listen(parse("tcp://127.0.0.1:0"))
    with listener, socket.create_connection((bound.host, bound.port)):
        assert bound.port == listener.getsockname()[1] > 0


def test_a_path_that_is_taken_is_not_taken_over(tmp_path: Path) -> None:
    if len(str(tmp_path)) > 90:
        pytest.skip("the temporary folder's own path is too long")
    listener, bound = listen(parse(f"unix://{tmp_path}/s"))
    with listener, pytest.raises(OSError, match="in use"):
        listen(bound)
