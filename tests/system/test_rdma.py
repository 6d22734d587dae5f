"""Promises of one-sided reads and writes, between real processes, by process_vm_readv and by TCP."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import secrets
import signal
import socket
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from rdma_owner import TESTER, FakeHome, Process

from roost.rdma import (
    OwnerDied,
    RDMABuffer,
    RDMAError,
    StaleBuffer,
    TransferTimeout,
    sending_to,
    service,
    set_home,
)
from roost.rdma.identity import me
from roost.rdma.lifecycle import shutdown
from roost.rdma.registry import registry

SECRET = secrets.token_bytes(32)
LAYOUTS = {
    "flat": ("torch.arange(1000).to({d})", lambda d: torch.zeros(1000, dtype=d)),
    "matrix to transposed": (
        "torch.arange(600).to({d}).view(20, 30)",
        lambda d: torch.zeros(30, 20, dtype=d).T,
    ),
    "transposed to matrix": (
        "torch.arange(600).to({d}).view(20, 30).T",
        lambda d: torch.zeros(30, 20, dtype=d),
    ),
    "rows of a wider one": (
        "torch.arange(3000).to({d}).view(100, 30)[::2, 3:17]",
        lambda d: torch.zeros(50, 40, dtype=d)[:, 5:19],
    ),
    "expanded": ("torch.arange(7).to({d}).expand(9, 7)", lambda d: torch.zeros(9, 7, dtype=d)),
    "sparse columns": (
        "torch.arange(90000).to({d}).view(300, 300)[:, ::50]",
        lambda d: torch.zeros(300, 6, dtype=d),
    ),
    "scalar": ("torch.tensor(5, dtype={d})", lambda d: torch.zeros((), dtype=d)),
    "empty": ("torch.zeros(4, 0, dtype={d})", lambda d: torch.zeros(4, 0, dtype=d)),
}
DTYPES = ["float32", "bfloat16", "int8", "bool", "complex128"]


@pytest.fixture(autouse=True)
def home(lasting):
    """This process as a reader on node-a; leaves no socket, descriptor or child behind."""
    here = psutil.Process()
    before = (here.num_fds(), len(here.children()))
    home = FakeHome(TESTER, "node-a", SECRET)
    set_home(home)
    yield home
    gc.collect()
    shutdown()
    assert not [t for t in threading.enumerate() if t.name.startswith("roost-rdma")]
    assert (here.num_fds(), len(here.children())) == before


@pytest.fixture
def spawn(home):
    started = []

    def spawn(node: str = "node-a", secret: bytes = SECRET) -> Process:
        started.append(Process(secrets.randbits(62), node, secret))
        return started[-1]

    yield spawn
    for process in started:
        process.close()


@pytest.fixture(scope="module")
def lasting():
    """Two processes for the tests that leave their process well: each costs 1.5 s to import torch."""
    processes = {"cma": Process(1, "node-a", SECRET), "tcp": Process(2, "node-b", SECRET)}
    yield processes
    for process in processes.values():
        process.close()


@pytest.fixture(params=["cma", "tcp"])
def owner(request, lasting):
    """Another process on this node, or, by its node id, on another."""
    process = lasting[request.param]
    process.backend = request.param
    yield process
    assert process.ask("clear") == (0, 0, 0)


@pytest.fixture(params=["node-a", "node-b"])
def victim(request, spawn):
    """As `owner`, to be ruined."""
    return spawn(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_give_the_owners_values_in_every_layout(owner, dtype):
    d = getattr(torch, dtype)
    for make, into in LAYOUTS.values():
        handle, out = owner.open("x", make.format(d=f"torch.{dtype}")), into(d)
        transfer = handle.read_into(out)
        transfer.get(10)
        assert torch.equal(out, eval(make.format(d=d)))
        assert transfer.moved.backend == owner.backend and handle.explain().startswith(owner.backend)


@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_give_the_owner_our_values_in_every_layout(owner, dtype):
    d = getattr(torch, dtype)
    for make, into in LAYOUTS.values():
        source = eval(make.format(d=d))
        target = into(d)
        expression = f"torch.zeros({target.untyped_storage().nbytes() // d.itemsize}, dtype={d})"
        expression += f".as_strided({tuple(target.shape)}, {target.stride()}, {target.storage_offset()})"
        handle = owner.open("x", expression)
        handle.write_from(source).get(10)
        assert torch.equal(owner.ask("value", "x"), source)


def test_numpy_arrays_with_negative_strides_and_bytes_go_both_ways(owner):
    handle = owner.open("x", "np.arange(20, dtype='i4').reshape(4, 5)[::-1, ::-2]")
    expected = np.arange(20, dtype="i4").reshape(4, 5)[::-1, ::-2]
    out = np.zeros((4, 3), "i4")[:, ::-1]
    handle.read_into(out).get(10)
    np.testing.assert_array_equal(out, expected)
    flat = owner.open("y", "bytearray(range(100))")
    taken = bytearray(100)
    flat.read_into(taken).get(10)
    assert taken == bytes(range(100))
    flat.write_from(b"\x07" * 100).get(10)
    assert owner.ask("value", "y") == b"\x07" * 100


def test_a_flat_byte_destination_takes_any_contiguous_buffer(owner):
    handle = owner.open("x", "torch.arange(6.0).view(2, 3)")
    out = torch.zeros(24, dtype=torch.uint8)
    handle.read_into(out).get(10)
    assert torch.equal(out.view(torch.float32), torch.arange(6.0))


def test_large_transfers_arrive_whole(owner):
    n = 40 << 20
    handle, out = owner.open("x", f"np.arange({n}, dtype='u4')"), np.zeros(n, "u4")
    handle.read_into(out).get(60)
    np.testing.assert_array_equal(out, np.arange(n, dtype="u4"))
    handle.write_from(out[::-1]).get(60)
    same = f"(owner.arrays['x'] == np.arange({n}, dtype='u4')[::-1]).all()"
    assert owner.ask("run", f"import numpy as np; answer = bool({same})")


def test_many_rows_arrive_whole(owner):
    handle = owner.open("x", "torch.arange(10000 * 512, dtype=torch.int32).view(10000, 512)[:, 100:300]")
    out = torch.zeros(10000, 200, dtype=torch.int32)
    handle.read_into(out).get(30)
    assert torch.equal(out, torch.arange(10000 * 512, dtype=torch.int32).view(10000, 512)[:, 100:300])


def test_a_misfit_is_refused_at_the_call(owner):
    handle = owner.open("x", "torch.zeros(4, 4)")
    with pytest.raises(ValueError, match=r"float32\[4, 4\].*float32\[2, 4\]"):
        handle.read_into(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"float32\[4, 4\].*float64\[4, 4\]"):
        handle.read_into(torch.zeros(4, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="one place in memory"):
        handle.read_into(torch.zeros(4).expand(4, 4))
    with pytest.raises(ValueError, match="read-only"):
        handle.read_into(np.broadcast_to(np.zeros((4, 4), "f4"), (4, 4)))
    with pytest.raises(ValueError, match="read-only"):
        owner.open("y", "b'abc'").write_from(b"abd")


def test_the_owner_may_be_busy_in_pure_python(victim):
    handle, out = victim.open("x", "torch.ones(1000)"), torch.zeros(1000)
    victim.ask("spin")
    handle.read_into(out, timeout=20).get(20)
    assert out.sum() == 1000


def test_on_one_host_the_owner_may_be_stopped(spawn):
    owner = spawn()
    handle, out = owner.open("x", "torch.ones(5000000)"), torch.zeros(5000000)
    os.kill(owner.pid, signal.SIGSTOP)
    handle.read_into(out).get(20)
    assert out.sum() == 5000000


def test_a_stopped_owner_on_another_host_is_a_timeout(spawn):
    owner = spawn("node-b")
    handle, out = owner.open("x", "torch.ones(5000000)"), torch.zeros(5000000)
    handle.read_into(out).get(20)
    os.kill(owner.pid, signal.SIGSTOP)
    with pytest.raises(TransferTimeout, match=f"pid {owner.pid} on node-b.*did not answer in time"):
        handle.read_into(out, timeout=0.3).get(20)
    os.kill(owner.pid, signal.SIGCONT)
    handle.read_into(out).get(20)


def test_waiting_ends_before_the_transfer_does(spawn):
    owner = spawn("node-b")
    handle = owner.open("x", "torch.ones(10)")
    os.kill(owner.pid, signal.SIGSTOP)
    transfer = handle.read_into(torch.zeros(10))
    with pytest.raises(TransferTimeout, match="still running"):
        transfer.get(0.05)
    os.kill(owner.pid, signal.SIGCONT)
    transfer.get(20)


def test_a_dropped_buffer_is_stale_everywhere(owner):
    handle, out = owner.open("x", "torch.ones(1000)"), torch.zeros(1000)
    other = owner.open("y", "torch.ones(1000)")
    handle.read_into(out).get(10)
    owner.ask("drop", "x")
    for operation in (handle.read_into, handle.write_from):
        with pytest.raises(StaleBuffer, match=f"pid {owner.pid}"):
            operation(out).get(10)
    big = torch.zeros(1000, dtype=torch.float32)
    other.read_into(big).get(10)


def test_a_buffer_never_pickled_is_freed_with_its_last_handle():
    tensor = torch.zeros(1000)
    handle = RDMABuffer(tensor)
    assert registry().statistics() == (1, 1, 4000)
    again = RDMABuffer(tensor[5:10])
    assert registry().statistics() == (2, 1, 4000), "one block however many views"
    del handle, again
    assert registry().statistics() == (0, 0, 0)


def test_a_handle_elsewhere_keeps_the_memory_until_it_goes(owner, home):
    messages: list[tuple[int, str, tuple]] = []
    arrived = threading.Semaphore(0)
    home.out = lambda *message: (messages.append(message), arrived.release())
    handle = owner.open("x", "torch.ones(1000)")
    owner.ask("forget", "x")
    assert arrived.acquire(timeout=5)
    assert owner.ask("receive", TESTER, *messages[0][1:])[0] == 1, "acknowledged: held by us"
    out = torch.zeros(1000)
    handle.read_into(out).get(10)
    assert out.sum() == 1000
    del handle
    gc.collect()
    assert arrived.acquire(timeout=5)
    assert owner.ask("receive", TESTER, *messages[1][1:])[0] == 0, "released: freed"


def test_a_handle_on_its_way_keeps_the_memory_and_a_dead_receiver_gives_it_up(owner):
    owner.ask("open", "x", "torch.ones(1000)")
    owner.ask("forget", "x")
    assert owner.ask("statistics")[0] == 1
    assert owner.ask("died", TESTER)[0] == 0


def test_a_handle_passed_on_keeps_the_memory_for_the_third(spawn, home):
    owner, third = spawn(), spawn()
    told, arrived = [], threading.Semaphore(0)
    home.out = lambda *message: (told.append(message), arrived.release())
    handle = owner.open("x", "torch.full((50,), 3.0)")
    owner.ask("forget", "x")
    with sending_to([third.proc_id]):
        data = pickle.dumps(handle)
    del handle
    gc.collect()
    for _ in range(3):
        assert arrived.acquire(timeout=5)
    assert [kind for _, kind, _ in told] == ["ack", "pin", "release"]
    for _, kind, body in told:
        left = owner.ask("receive", TESTER, kind, body)
    assert left[0] == 1
    third.ask("take", "x", data)
    assert third.ask("read", "x", "np.zeros(50, 'f4')") == np.full(50, 3, "f4").tobytes()
    third.ask("forget", "x")
    deadline = time.monotonic() + 5
    while len(messages := third.ask("told")) < 2 and time.monotonic() < deadline:
        pass
    for _, kind, body in messages:
        left = owner.ask("receive", third.proc_id, kind, body)
    assert left[0] == 0


def test_messages_out_of_order_neither_free_early_nor_hold_for_ever():
    handle = RDMABuffer(torch.zeros(3))
    key = handle._handle.key
    with sending_to([11, 12]):
        token = _token(pickle.dumps(handle))
    del handle
    service.receive(11, "ack", (key, token, 0))
    service.receive(11, "release", (key, 1))
    assert registry().statistics()[0] == 1, "12 has not unpickled it yet"
    service.receive(12, "pin", (key, 4 | 1, (13,)))
    service.receive(12, "release", (key, 6))
    service.receive(12, "ack", (key, token, 5))
    assert registry().statistics()[0] == 1, "13 was sent one"
    service.receive(13, "release", (key, 1))
    service.receive(13, "ack", (key, 4 | 1, 0))
    service.receive(13, "release", (key, 2))
    assert registry().statistics()[0] == 0


def _token(data: bytes) -> int:
    from roost.rdma.handle import unpack

    (packed,) = [v for v in _walk(data) if isinstance(v, bytes) and len(v) > 60]
    return unpack(packed)[1]


def _walk(data: bytes):
    import pickletools

    return [argument for _, argument, _ in pickletools.genops(data)]


def test_a_handle_that_comes_home_is_local(owner):
    tensor = torch.arange(5.0)
    handle = RDMABuffer(tensor)
    back = pickle.loads(pickle.dumps(handle))
    out = torch.zeros(5)
    transfer = back.read_into(out)
    transfer.get(5)
    assert transfer.moved.backend == "local" and torch.equal(out, tensor)
    handle.write_from(out * 2).get(5)
    assert torch.equal(tensor, torch.arange(5.0) * 2)
    handle.drop().get(0)
    with pytest.raises(StaleBuffer):
        back.read_into(out).get(5)


def test_another_process_reads_and_writes_ours(owner):
    tensor = torch.arange(6.0)
    handle = RDMABuffer(tensor)
    owner.ask("take", "theirs", pickle.dumps(handle))
    assert owner.ask("read", "theirs", "np.zeros(6, 'f4')") == tensor.numpy().tobytes()
    owner.ask("run", "import torch; owner.handles['theirs'].write_from(torch.full((6,), 9.0)).get(10)")
    assert torch.equal(tensor, torch.full((6,), 9.0))
    handle.drop()


def test_a_handle_of_an_older_generation_is_stale(owner):
    handle, out = owner.open("x", "torch.zeros(4)"), torch.ones(4)
    newer = owner.ask(
        "run",
        "import pickle; owner.handles['x'] = owner.handles['x'].advance(); answer = pickle.dumps(owner.handles['x'])",
    )
    with pytest.raises(StaleBuffer):
        handle.read_into(out).get(10)
    pickle.loads(newer).read_into(out).get(10)
    assert out.sum() == 0


def test_an_owner_killed_in_the_middle_is_known_at_once(spawn):
    owner = spawn("node-b")
    handle = owner.open("x", f"np.zeros({1 << 30}, 'u1')")
    out = np.empty(1 << 30, "u1")
    out.fill(1)
    transfer = handle.read_into(out)
    deadline = time.monotonic() + 30
    while out[32 << 20] and time.monotonic() < deadline:
        pass
    os.kill(owner.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(OwnerDied, match=f"pid {owner.pid} on node-b"):
        transfer.get(20)
    assert time.monotonic() - begin < 2


def test_a_dead_owner_is_named(victim):
    handle, out = victim.open("x", "torch.zeros(4)"), torch.zeros(4)
    handle.read_into(out).get(10)
    victim.child.kill()
    victim.child.wait(10)
    with pytest.raises(OwnerDied, match=f"pid {victim.pid} on node-"):
        handle.read_into(out).get(10)


def test_the_runtimes_word_of_a_death_ends_a_read_at_once(spawn, home):
    owner = spawn("node-b")
    handle, out = owner.open("x", "torch.zeros(4)"), torch.zeros(4)
    handle.read_into(out).get(10)
    os.kill(owner.pid, signal.SIGSTOP)
    transfer = handle.read_into(out)
    for callback in home.watchers.pop(owner.proc_id):
        callback(owner.proc_id)
    with pytest.raises(OwnerDied):
        transfer.get(5)


def test_another_jobs_secret_is_refused(spawn):
    owner = spawn("node-b", secrets.token_bytes(32))
    handle = owner.open("x", "torch.zeros(4)")
    with pytest.raises(RDMAError, match="another job's secret"):
        handle.read_into(torch.zeros(4)).get(10)


def test_a_stranger_gets_no_byte_of_memory(spawn):
    owner = spawn("node-b")
    handle = owner.open("x", "torch.zeros(4)")
    for greeting in (b"GET / HTTP/1.1\r\n\r\n" * 4, b"ROOSTRD1" + bytes(16) + bytes(32)):
        with socket.create_connection(handle._handle.address, timeout=5) as sock:
            sock.sendall(greeting)
            answer = b""
            try:
                while chunk := sock.recv(4096):
                    answer += chunk
            except ConnectionResetError:
                pass
        assert len(answer) in (0, 48), "at most the owner's nonce and proof"
    out = torch.ones(4)
    handle.read_into(out).get(10)
    assert out.sum() == 0


def test_a_request_outside_the_block_is_refused(spawn):
    from array import array

    from roost.rdma.client import client_of
    from roost.rdma.layout import Runs

    owner = spawn("node-b")
    h = owner.open("x", "np.zeros(4096, 'u1')")._handle
    out = bytearray(64)
    for offset in (4090, -8, 1 << 62):
        runs = Runs(array("q", [offset]), array("q", [0]), array("q", [64]), 64)
        with pytest.raises(RDMAError, match="outside the registered memory"):
            client_of(h.owner, h.address).read(h.cookie, 0, np.frombuffer(out, "u1").ctypes.data, runs, None)


def test_a_pid_of_another_start_time_is_not_the_owner(spawn):
    from dataclasses import replace

    owner = spawn()
    handle = owner.open("x", "torch.zeros(4)")
    forged = replace(handle._handle, cookie=handle._handle.key + bytes([255] * 8))
    handle._handle = forged
    with pytest.raises(StaleBuffer):
        handle.read_into(torch.zeros(4)).get(10)
    owner.close()
    with pytest.raises(OwnerDied):
        handle.read_into(torch.zeros(4)).get(10)


def test_concurrent_writers_to_one_buffer_each_land(owner):
    handle = owner.open("x", "torch.zeros(16, 100000)")
    rows = [
        owner.ask(
            "run",
            f"import pickle; from roost.rdma import RDMABuffer; "
            f"owner.handles['r{i}'] = RDMABuffer(owner.arrays['x'][{i}]); "
            f"answer = pickle.dumps(owner.handles['r{i}'])",
        )
        for i in range(16)
    ]
    transfers = [pickle.loads(row).write_from(torch.full((100000,), float(i))) for i, row in enumerate(rows)]
    for transfer in transfers:
        transfer.get(20)
    out = torch.zeros(16, 100000)
    handle.read_into(out).get(20)
    assert torch.equal(out, torch.arange(16.0)[:, None].expand(16, 100000))
    assert owner.ask("statistics")[1] == 1, "one block, seventeen handles"


def test_transfers_are_awaited_from_any_loop(owner):
    handle = owner.open("x", "torch.ones(1000000)")

    async def main() -> float:
        outs = [torch.zeros(1000000) for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*[_awaited(handle.read_into(out)) for out in outs]), 20)
        return float(sum(out.sum() for out in outs))

    assert asyncio.run(main()) == 4000000


async def _awaited(transfer) -> None:
    await transfer


def test_a_refusal_by_the_kernel_is_remembered_and_tcp_used(spawn, monkeypatch):
    from roost.rdma import cma

    owner = spawn()
    calls = []

    def refuse(owner, *_):
        calls.append(owner)
        raise cma.CmaRefused(f"the kernel refuses to read the memory of {owner}: Operation not permitted")

    monkeypatch.setattr(cma, "check", refuse)
    out = torch.zeros(10)
    for _ in range(3):
        handle = owner.open("x", "torch.ones(10)")
        transfer = handle.read_into(out)
        transfer.get(10)
        assert transfer.moved.backend == "tcp"
    assert len(calls) == 1 and handle.explain().startswith("tcp: the kernel refuses")


def test_device_memory_is_staged_by_the_owners_server(spawn):
    owner = spawn("node-b")
    handle = owner.open("x", "torch.arange(1000.0).view(50, 20)")
    owner.ask("run", "from roost.rdma import server; server.is_host = lambda span: False")
    out = torch.zeros(50, 20)
    handle.read_into(out).get(10)
    assert torch.equal(out, torch.arange(1000.0).view(50, 20))
    handle.write_from(out * 2).get(10)
    assert torch.equal(owner.ask("value", "x"), out * 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_go_both_ways(owner):
    handle = owner.open("x", "torch.arange(1000.0, device='cuda').view(50, 20).T")
    out = torch.zeros(20, 50, device="cuda")
    handle.read_into(out).get(20)
    assert torch.equal(out.cpu(), torch.arange(1000.0).view(50, 20).T)
    handle.write_from(out * 2).get(20)
    assert torch.equal(owner.ask("value", "x").cpu(), out.cpu() * 2)


def test_a_handle_is_small_and_says_what_it_is():
    handle = RDMABuffer(torch.zeros(2, 3, 4, 5, 6, 7, 1, 1).transpose(0, 5))
    assert len(pickle.dumps(handle)) < 400
    assert handle.size() == 4 * 5040 and handle.owner == TESTER and handle.dtype == "float32"
    assert repr(RDMABuffer(torch.zeros(2, 3))) == (f"RDMABuffer(float32[2, 3], 24 bytes, owner {me()}, open here)")
    handle.drop()
    assert repr(handle).endswith("dropped)")
    with pytest.raises(StaleBuffer):
        pickle.dumps(handle)


def test_without_a_running_process_a_sentence_says_so():
    set_home(None)
    with pytest.raises(RuntimeError, match=r"call this_host\(\) first"):
        RDMABuffer(torch.zeros(1))


def test_a_forked_child_reads_its_parents_buffer_and_keeps_no_descriptor():
    tensor = torch.arange(100.0)
    handle = RDMABuffer(tensor)
    pickle.dumps(handle)  # starts the server
    address = handle._handle.address
    child = os.fork()
    if not child:
        code = 1
        try:
            set_home(FakeHome(8, "node-a", SECRET))
            out = np.zeros(100, "f4")
            handle.read_into(out, timeout=5).get(5)
            inherited = [c.laddr.port for c in psutil.Process().net_connections() if c.laddr]
            code = 0 if out.sum() == 4950 and address[1] not in inherited else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    handle.drop()


def test_pieces_of_a_flat_buffer_go_to_several_arrays_in_one_transfer(owner):
    handle = owner.open("x", "torch.arange(64, dtype=torch.uint8)")
    head, tail = torch.zeros(4, dtype=torch.uint8), torch.zeros(4, 2, dtype=torch.int32).T
    handle.read_pieces([(0, head), (32, tail)]).get(10)
    assert head.tolist() == [0, 1, 2, 3]
    assert torch.equal(tail, torch.arange(32, 64, dtype=torch.uint8).view(torch.int32).view(2, 4))
    with pytest.raises(ValueError, match="outside a buffer of 64 bytes"):
        handle.read_pieces([(60, tail)])
    owner.ask("drop", "x")
    with pytest.raises(StaleBuffer):
        handle.read_pieces([(0, head), (32, tail)]).get(10)
