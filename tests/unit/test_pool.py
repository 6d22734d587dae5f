"""Shared-memory segments: lent, released by the last view, reused, bounded; across two real processes."""

import gc
import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from roost.actors.wire import copying, pool
from roost.actors.wire.headroom import headroom
from roost.actors.wire.pickling import pack, unpack
from roost.actors.wire.pool import Mappings, Pool, layout, size_class

MiB = 1 << 20


@pytest.fixture(autouse=True)
def no_descriptor_is_left():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def sender():
    made = Pool(256 * MiB)
    yield made
    made.close()


@pytest.fixture
def receiver():
    made = Mappings()
    yield made
    made.close()


class Released:
    """Counts the calls of an `on_release`."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


def deliver(sender, receiver, payload: bytes, private=False, receivers=(7,)):
    segment = sender.take(len(payload))
    spans = sender.fill(segment, [memoryview(payload)])
    sender.lend(segment, receivers)
    if not receiver.knows(1, segment.id):
        receiver.add(1, segment.id, os.dup(segment.fd), segment.size)
    released = Released()
    (view,) = receiver.open(1, segment.id, spans, private, released)
    return segment, view, released


def test_size_classes_waste_a_third_at_most():
    for nbytes in [1, MiB, MiB + 1, 3 * MiB // 2 + 1, 5 * MiB, 100 * MiB + 7]:
        size = size_class(nbytes)
        assert nbytes <= size <= max(MiB, nbytes * 3 // 2) and size % 4096 == 0


def test_buffers_are_laid_out_aligned():
    assert layout([1, 0, 64, 65, 3]) == ([(0, 1), (64, 0), (64, 64), (128, 65), (256, 3)], 320)
    assert layout([]) == ([], 0)


def test_what_is_filled_in_is_what_is_read(sender, receiver):
    payload = [memoryview(os.urandom(n)) for n in (3, 0, 100_000, 5 * MiB + 1, 4 * MiB)]
    segment = sender.take(layout(len(each) for each in payload)[1])
    spans = sender.fill(segment, payload)
    sender.lend(segment, [7])
    receiver.add(1, segment.id, os.dup(segment.fd), segment.size)
    views = receiver.open(1, segment.id, spans, False, Released())
    assert [view == sent for view, sent in zip(views, payload, strict=True)] == [True] * 5
    assert all(offset % 64 == 0 for offset, _ in spans)


def test_what_does_not_fit_is_refused(sender):
    segment = sender.take(MiB)
    with pytest.raises(ValueError, match="do not fit"):
        sender.fill(segment, [memoryview(bytes(MiB + 1))])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_large_fills_are_whole_whatever_the_threads(sender, monkeypatch, threads):
    monkeypatch.setattr(copying, "THREADS", threads)
    monkeypatch.setattr(copying, "_helpers", None)
    payload = os.urandom(20 * MiB + 13)
    segment = sender.take(len(payload))
    ((offset, nbytes),) = sender.fill(segment, [memoryview(payload)])
    assert segment.view[offset : offset + nbytes] == payload
    if copying._helpers is not None:
        copying._helpers.shutdown()


def test_a_segment_is_reused_once_its_receiver_has_released_it(sender, receiver):
    first, view, released = deliver(sender, receiver, b"a" * MiB)
    assert sender.take(MiB) is not first
    del view
    assert released.times == 1
    sender.released(first.id, 7)
    assert sender.take(MiB) is first


def test_a_segment_lent_to_several_is_free_when_the_last_has_released_it(sender):
    segment = sender.take(MiB)
    sender.lend(segment, [1, 2, 3])
    sender.released(segment.id, 1)
    sender.released(segment.id, 1)
    sender.receiver_died(3)
    assert sender.statistics().lent_bytes == MiB and segment.holders == {2}
    sender.released(segment.id, 2)
    assert sender.statistics().lent_bytes == 0
    assert segment.knows == {1, 2}, "a dead receiver's descriptor is gone with it"


def test_a_segment_lent_to_none_is_free(sender):
    segment = sender.take(MiB)
    sender.lend(segment, [])
    assert sender.take(MiB) is segment


def test_reuse_does_not_touch_a_view_that_is_still_held(sender, receiver):
    _, held, _ = deliver(sender, receiver, b"a" * MiB)
    for text in (b"b", b"c"):
        segment, view, _ = deliver(sender, receiver, text * MiB)
        assert view == text * MiB
        del view
        sender.released(segment.id, 7)
    assert held == b"a" * MiB and sender.statistics().segments == 2


def test_a_private_view_keeps_its_writes_to_itself_and_the_next_message_is_whole(sender, receiver):
    segment, mine, _ = deliver(sender, receiver, b"a" * MiB, private=True, receivers=(7, 8))
    (theirs,) = receiver.open(1, segment.id, [(0, MiB)], True, Released())
    mine[:4096] = b"x" * 4096
    assert theirs == b"a" * MiB and segment.view[:1] == b"a"
    del mine, theirs
    for process in (7, 8):
        sender.released(segment.id, process)
    again, view, _ = deliver(sender, receiver, b"b" * MiB, private=True, receivers=(7, 8))
    assert again is segment and view == b"b" * MiB


def test_a_single_receiver_may_write_in_place(sender, receiver):
    segment, view, _ = deliver(sender, receiver, b"a" * MiB)
    np.frombuffer(view, np.uint8)[:] = 7
    assert segment.view[:3] == b"\7\7\7"


def test_release_waits_for_the_last_of_views_arrays_and_tensors(sender, receiver):
    torch = pytest.importorskip("torch")
    _, view, released = deliver(sender, receiver, b"a" * MiB)
    holders = {
        "slice": view[10:20],
        "array": np.frombuffer(view, np.uint8)[5:],
        "tensor": torch.frombuffer(view, dtype=torch.uint8)[3:7].view(2, 2),
    }
    del view
    for name in list(holders):
        assert released.times == 0, f"released while the {name} is held"
        del holders[name]
    assert released.times == 1


@pytest.mark.parametrize("private", [False, True])
def test_unpickled_tensors_and_arrays_lie_in_the_segment_and_release_it(sender, receiver, private):
    torch = pytest.importorskip("torch")
    base = torch.arange(1_000_000.0)
    packed = pack({"w": base, "row": base[5:9], "n": np.arange(1_000_000)[::-1]})
    segment = sender.take(layout(each.nbytes for each in packed.buffers)[1])
    spans = sender.fill(segment, packed.buffers)
    sender.lend(segment, [7])
    receiver.add(1, segment.id, os.dup(segment.fd), segment.size)
    released = Released()
    got = unpack(packed.data, receiver.open(1, segment.id, spans, private, released))
    before = bytes(segment.view[:4_100_000])
    got["w"][5] = -1
    assert got["row"][0] == -1 and got["n"][0] == 999_999
    assert (bytes(segment.view[:4_100_000]) == before) == private
    row = got["row"]
    got.clear()
    assert released.times == 0
    del row
    assert released.times == 1


def test_a_message_without_bytes_is_released_at_once(sender, receiver):
    segment = sender.take(1)
    receiver.add(1, segment.id, os.dup(segment.fd), segment.size)
    released = Released()
    assert receiver.open(1, segment.id, [], False, released) == [] and released.times == 1


def test_spans_outside_a_segment_and_unknown_segments_are_refused(sender, receiver):
    segment = sender.take(MiB)
    receiver.add(1, segment.id, os.dup(segment.fd), segment.size)
    for span in [(0, MiB + 1), (-1, 4), (MiB, 1)]:
        with pytest.raises(ValueError, match="outside"):
            receiver.open(1, segment.id, [span], False, Released())
    with pytest.raises(KeyError):
        receiver.open(2, segment.id, [(0, 1)], False, Released())


def test_views_outlive_the_sender_the_mappings_and_the_pool(sender, receiver):
    _, view, released = deliver(sender, receiver, b"a" * MiB)
    receiver.forget(1)
    receiver.close()
    sender.close()
    assert view == b"a" * MiB and released.times == 0
    del view
    assert released.times == 1


def test_a_forked_childs_copies_do_not_report_a_release(sender, receiver):
    read, write = os.pipe()
    _, view, released = deliver(sender, receiver, b"a" * MiB)
    child = os.fork()
    if not child:
        del view
        os.write(write, bytes([released.times]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"\0"
    os.close(read)
    os.close(write)


def test_past_the_bound_there_is_no_segment_and_free_ones_make_room():
    small = Pool(4 * MiB)
    held = [small.take(MiB), small.take(MiB), small.take(2 * MiB)]
    assert small.take(1) is None and small.statistics().refused == 1
    for segment in held[:2]:
        small.lend(segment, [])
    assert small.take(2 * MiB) is not None, "two free ones of 1 MiB are given up for one of 2 MiB"
    assert small.statistics().held_bytes == 4 * MiB
    assert sorted(id for id, _ in small.retired()) == [1, 2] and small.retired() == []
    small.close()


def test_a_bound_below_the_message_refuses_it_and_gives_up_nothing_in_use():
    small = Pool(2 * MiB)
    segment = small.take(2 * MiB)
    small.fill(segment, [memoryview(b"kept")])
    assert small.take(64 * MiB) is None and segment.view[:4] == b"kept"
    small.close()


def test_no_segment_is_made_that_the_machine_has_no_room_for(monkeypatch):
    monkeypatch.setattr(pool, "headroom", lambda: 3 * MiB)
    unbound = Pool()
    assert unbound.take(MiB) is not None and unbound.statistics().limit_bytes == 3 * MiB // 2
    unbound.close()
    tight = Pool(64 * MiB)
    assert tight.take(2 * MiB) is None
    assert tight.take(MiB) is not None
    tight.close()


def test_trim_gives_the_pages_back_though_a_receiver_still_maps_them(sender, receiver):
    segment, view, _ = deliver(sender, receiver, b"a" * (8 * MiB))
    watch = os.dup(segment.fd)
    assert os.fstat(watch).st_blocks * 512 >= 8 * MiB
    del view
    sender.released(segment.id, 7)
    sender.trim()
    assert os.fstat(watch).st_blocks == 0
    os.close(watch)
    assert sender.retired() == [(segment.id, frozenset({7}))]
    receiver.drop(1, segment.id)
    assert not receiver.knows(1, segment.id)


def test_reports_from_a_finalizer_inside_the_pools_lock_are_kept_not_deadlocked(sender):
    segment = sender.take(MiB)
    sender.lend(segment, [7])
    with sender._lock:
        reporter = threading.Thread(target=sender.released, args=(segment.id, 7))
        reporter.start()
        reporter.join(10)
        assert not reporter.is_alive()
        sender.released(segment.id, 7)
    assert sender.take(MiB) is segment


def test_many_threads_never_share_a_segment(sender):
    failures = []

    def work(me: int) -> None:
        mark = bytes([me]) * 1000
        for _ in range(200):
            segment = sender.take(MiB)
            sender.fill(segment, [memoryview(mark)])
            if segment.view[:1000] != mark:
                failures.append(me)
            sender.lend(segment, [me])
            sender.released(segment.id, me)

    threads = [threading.Thread(target=work, args=(at + 1,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures and sender.statistics().segments <= 4 and sender.statistics().lent_bytes == 0


RECEIVER = """
import socket, sys
import numpy as np
from roost.actors.wire.pool import Mappings

side = socket.socket(fileno=int(sys.argv[1]))
mappings = Mappings()
held = []
released = lambda: side.sendall(b"released\\n")
while True:
    line, fds, _, _ = socket.recv_fds(side, 4096, 1)
    if not line:
        break
    verb, *numbers = line.decode().split()
    numbers = [int(number) for number in numbers]
    if verb == "add":
        mappings.add(1, numbers[0], fds[0], numbers[1])
        side.sendall(b"added\\n")
    elif verb == "open":
        (view,) = mappings.open(1, numbers[0], [(0, numbers[1])], bool(numbers[2]), released)
        held.append(np.frombuffer(view, np.uint8)[1:])
        del view
        side.sendall(f"first {held[-1][0]} sum {int(held[-1].sum())}\\n".encode())
    elif verb == "write":
        held[-1][:] = numbers[0]
        side.sendall(b"wrote\\n")
    elif verb == "drop":
        held.clear()
"""


@pytest.fixture
def process():
    """A second process, and a function that asks it one thing and gives its answer."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    child = subprocess.Popen([sys.executable, "-c", RECEIVER, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    with ours, ours.makefile() as answers:

        def ask(text: str, fds=()) -> str:
            socket.send_fds(ours, [text.encode()], fds)
            return answers.readline().strip()

        yield child, ask
    child.kill()
    child.wait(60)


@pytest.mark.parametrize("private", [0, 1])
def test_another_process_sees_each_message_whole_over_one_descriptor(sender, process, private):
    child, ask = process
    for value in (1, 2, 3):
        segment = sender.take(MiB)
        if child.pid not in segment.knows:
            assert ask(f"add {segment.id} {segment.size}", [segment.fd]) == "added"
        sender.fill(segment, [memoryview(bytes([value]) * MiB)])
        sender.lend(segment, [child.pid])
        assert ask(f"open {segment.id} {MiB} {private}") == f"first {value} sum {value * (MiB - 1)}"
        assert ask("write 9") == "wrote"
        assert segment.view[1] == (value if private else 9)
        assert ask("drop") == "released"
        sender.released(segment.id, child.pid)
    assert sender.statistics().segments == 1 and sender.statistics().lent_bytes == 0


def test_a_killed_receiver_holds_nothing_and_leaves_nothing(sender, process):
    child, ask = process
    segment = sender.take(MiB)
    sender.lend(segment, [child.pid])
    ask(f"add {segment.id} {segment.size}", [segment.fd])
    ask(f"open {segment.id} {MiB} 0")
    child.kill()
    child.wait(60)
    sender.receiver_died(child.pid)
    assert sender.take(MiB) is segment


def write_tree(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_headroom_is_the_least_that_the_machine_and_any_cgroup_leave(tmp_path):
    groups = tmp_path / "fs"
    write_tree(tmp_path, {
        "meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "self/cgroup": "4:memory:/job/step\n0::/user\n",
        "self/mountinfo": f"1 2 0:1 / {groups}/memory rw - cgroup cgroup rw,memory\n"
                          f"3 2 0:2 / {groups}/unified rw - cgroup2 cgroup2 rw\n",
        "fs/memory/job/step/memory.limit_in_bytes": "5000000",
        "fs/memory/job/step/memory.usage_in_bytes": "1000000",
        "fs/memory/job/memory.limit_in_bytes": "3000000",
        "fs/memory/job/memory.usage_in_bytes": "2000000",
        "fs/memory/job/memory.stat": "total_inactive_file 500\n",
        "fs/unified/user/memory.max": "max",
        "fs/unified/user/memory.current": "77",
    })  # fmt: skip
    assert headroom(tmp_path) == 1_000_500


def test_headroom_in_a_container_reads_the_group_at_the_mount(tmp_path):
    write_tree(tmp_path, {
        "meminfo": "MemAvailable: 8000 kB\n",
        "self/cgroup": "0::/docker/abc\n",
        "self/mountinfo": f"1 2 0:1 /docker/abc {tmp_path}/fs rw - cgroup2 cgroup2 rw\n",
        "fs/memory.max": "4000",
        "fs/memory.current": "3000",
    })  # fmt: skip
    assert headroom(tmp_path) == 1000


def test_headroom_here_is_no_more_than_the_machine_has():
    assert 0 < headroom() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
