"""Payloads: what goes out of band, what arrives, and what is said of what cannot be sent."""

import collections
import dataclasses
import enum
import functools
import pickle
import sys
import threading
import types
from pickle import PickleBuffer

import pytest

from roost.actors.wire import pickling
from roost.actors.wire.pickling import OUT_OF_BAND, UnpicklableError, pack, unpack

BIG = OUT_OF_BAND


def send(obj):
    packed = pack(obj)
    return unpack(packed.data, [memoryview(bytearray(buffer)) for buffer in packed.buffers])


@dataclasses.dataclass
class Point:
    x: int
    y: object = None


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Pair(collections.namedtuple("Pair", "left right")):
    pass


class Colour(enum.Enum):
    RED = 1


def double(x):
    return 2 * x


PLAIN = [
    None, True, 7, 1 << 80, -0.0, 3 + 4j, "text", "ünïcode", b"", b"bytes", bytearray(b"ba"),
    (), (1, "a", 2.5), [1, [2]], {"k": (1, 2)}, {1, 2}, frozenset({3}), range(5), slice(1, 2),
    Point(1, [2]), Pair(1, 2), Colour.RED, double, Point, len, int,
    Ellipsis, NotImplemented, type(None), collections.OrderedDict(a=1),
]  # fmt: skip


@pytest.mark.parametrize("obj", PLAIN, ids=repr)
def test_a_value_arrives_equal_and_of_its_type(obj):
    got = send(obj)
    assert got == obj and type(got) is type(obj)


def test_small_messages_are_one_stream_with_nothing_beside():
    packed = pack((1, "hello", [2.5, b"x" * 1000]))
    assert packed.buffers == [] and packed.definitions == ()
    assert packed.data == pickle.dumps((1, "hello", [2.5, b"x" * 1000]), 5)


def test_one_object_twice_arrives_as_one_and_cycles_stay_cycles():
    shared = [1]
    ring = [shared, shared]
    ring.append(ring)
    got = send(ring)
    assert got[0] is got[1] and got[2] is got


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("size", [BIG - 1, BIG, 3 * BIG + 1])
def test_large_bytes_leave_the_stream_uncopied_and_arrive_as_what_they_were(kind, size):
    sent = kind(b"\x95" + b"q" * (size - 1))
    packed = pack({"a": sent, "b": 1})
    if size < BIG:
        assert packed.buffers == []
    else:
        assert packed.buffers[0].obj is sent and len(packed.data) < 200
    got = send({"a": sent, "again": sent, "b": 1})
    assert got["a"] == sent and type(got["a"]) is kind and got["again"] is got["a"] and got["b"] == 1


def test_large_text_stays_in_the_stream():
    text = "é" * BIG
    assert pack(text).buffers == [] and send(["x", text, "y"]) == ["x", text, "y"]


def test_many_large_parts_of_every_kind_keep_their_order():
    class Own:
        def __reduce__(self):
            return bytes, (PickleBuffer(b"own"),)

    parts = [
        b"a" * BIG,
        "b" * BIG,
        Own(),
        bytearray(b"c" * BIG),
        memoryview(b"d" * 5),
        b"e" * BIG,
        list(range(50_000)),
    ]
    got = send(parts)
    assert got == [
        b"a" * BIG,
        "b" * BIG,
        b"own",
        bytearray(b"c" * BIG),
        b"d" * 5,
        b"e" * BIG,
        list(range(50_000)),
    ]


def test_bytes_that_look_like_the_end_of_a_stream_are_not_mistaken():
    """Of what a pickler writes, bytes are told from opcodes by what goes before; these imitate it."""
    frame = b"\x95" + (2 * BIG - 9).to_bytes(8, "little")
    tricky = [
        b"B" + BIG.to_bytes(4, "little"),
        frame + b"z" * (2 * BIG - 9),
        b"\x8e" + BIG.to_bytes(8, "little"),
        [1.5] * 20_000,
        b"B" * BIG,
    ]
    assert send(tricky) == tricky


@pytest.mark.parametrize(
    "view",
    [memoryview(b"abc"), memoryview(bytearray(12)).cast("i"), memoryview(bytes(24)).cast("B", (2, 3, 4))],
)
def test_a_memoryview_arrives_with_its_format_and_shape(view):
    got = send(view)
    assert type(got) is memoryview and (got.format, got.shape, got.tolist()) == (
        view.format,
        view.shape,
        view.tolist(),
    )


def test_a_strided_or_empty_memoryview_arrives_whole():
    assert send(memoryview(b"abcdef")[::2]).tobytes() == b"ace"
    assert send(memoryview(b"")).tobytes() == b""
    assert send(memoryview(bytes(12)).cast("i")[:0]).tobytes() == b""


def test_an_object_with_state_slots_or_its_own_reduce_arrives():
    slotted = send(Slotted(5))
    assert slotted.a == 5 and not hasattr(slotted, "b")
    assert isinstance(send(ValueError("text", 3)), ValueError)
    assert send(functools.partial(double, 4))() == 8
    assert send(Point(1).__eq__)(Point(1))


def test_a_closure_over_large_memory_sends_it_out_of_band():
    data = bytearray(b"z" * BIG)
    packed = pack(lambda: len(data))
    assert [buffer.nbytes for buffer in packed.buffers] == [BIG] and send(lambda: len(data))() == BIG


def test_packing_may_pack_within_itself():
    class Nested:
        def __reduce__(self):
            inner = pack([Point(3), b"i" * BIG])
            return bytes, (inner.data,)

    outer = send([Nested(), b"o" * BIG, Point(4)])
    assert outer[1] == b"o" * BIG and outer[2] == Point(4)


def test_threads_pack_side_by_side():
    wrong = []

    def work(me):
        for at in range(300):
            sent = [me, at, Point(me, [at]), b"%d" % me * BIG]
            if send(sent) != sent:
                wrong.append((me, at))

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_a_failed_message_leaves_nothing_in_the_next():
    with pytest.raises(UnpicklableError):
        pack([Point(1), threading.Lock()])
    assert pack((1, 2)).data == pickle.dumps((1, 2), 5)


def holder(value):
    return Point(0, {"deep": [1, (value,)]})


PATHS = [
    (
        ((1, threading.Lock()), {}),
        r"^argument 1: cannot pickle '_thread.lock' object; make it where it is used",
    ),
    (((), {"batch": {"loss": threading.Lock()}}), r"^argument 'batch'\['loss'\]: cannot pickle"),
    (
        ((holder(threading.RLock()),), {}),
        r"^argument 0\.y\['deep'\]\[1\]\[0\]: cannot pickle '_thread.RLock'",
    ),
    ((((x for x in ()),), {}), r"^argument 0: cannot pickle 'generator' object; send its items"),
    (((functools.partial(double, threading.Lock()),), {}), r"^argument 0\.args\[0\]: cannot pickle"),
    ((([{3: sys._getframe()}],), {}), r"^argument 0\[0\]\[3\]: cannot pickle 'frame' object"),
]


@pytest.mark.parametrize("obj, message", PATHS, ids=[path for _, path in PATHS])
def test_the_error_names_the_path_to_what_cannot_be_sent(obj, message):
    with pytest.raises(UnpicklableError, match=message) as caught:
        pack(obj)
    assert isinstance(caught.value, TypeError) and caught.value.__cause__ is not None


def test_the_error_names_what_a_function_closes_over():
    lock = threading.Lock()
    with pytest.raises(
        UnpicklableError, match=r"^the result\['fn'\] closing over 'lock': cannot pickle '_thread.lock'"
    ):
        pack({"fn": lambda: lock}, "the result")


def test_the_error_tells_what_a_users_own_method_raised():
    class Refuses:
        def __getstate__(self):
            raise KeyError("secret")

    with pytest.raises(
        UnpicklableError, match=r"argument\[0\]: cannot pickle it: KeyError: 'secret'; leave it out"
    ) as caught:
        pack([Refuses()])
    assert isinstance(caught.value.__cause__, KeyError)


def test_too_deep_a_nest_is_told_as_such():
    nest = []
    for _ in range(100_000):
        nest = [nest]
    with pytest.raises(UnpicklableError, match="nested too deeply"):
        pack(nest)


def test_a_function_replaced_in_its_module_is_sent_as_it_is(monkeypatch):
    module = types.ModuleType("replaced_module")
    exec("def f(): return 'old'", module.__dict__)
    monkeypatch.setitem(sys.modules, "replaced_module", module)
    old = module.f
    assert pack(old).definitions == () and send(old) is old
    exec("def f(): return 'new'", module.__dict__)
    assert send(old)() == "old" and send(module.f)() == "new"
    pickling.DEFINITIONS.forget_importable()


def test_an_interrupt_passes_through_unchanged():
    class Interrupts:
        def __reduce__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(Interrupts())
    assert send((1, 2)) == (1, 2)
