"""Classes and functions that a peer cannot import: sent once, told apart by version.

Most promises are kept between two real processes: a script, whose `__main__` defines things, and a
peer that was started with nothing of it.
"""

import gc
import subprocess
import sys
import textwrap
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest

from roost.actors.wire.definitions import DEFINITIONS, DefinitionMissing, Definitions
from roost.actors.wire.pickling import pack, unpack

PEER = """
import pickle, sys
from roost.actors.wire.definitions import DEFINITIONS
from roost.actors.wire.pickling import pack, unpack

sent = set()
while True:
    try:
        blobs, data, buffers = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    for id, blob in blobs.items():
        DEFINITIONS.learn(id, blob)
    sent.update(blobs)
    try:
        function, *args = unpack(data, buffers)
        packed = pack(function(*args))
    except Exception as error:
        packed = pack(repr(error))
    blobs = {id: DEFINITIONS.blob(id) for id in packed.definitions if id not in sent}
    sent.update(blobs)
    pickle.dump((blobs, packed.data, [bytes(b) for b in packed.buffers]), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""

SCRIPT = """
import dataclasses, enum, functools, gc, operator, pickle, subprocess, sys, typing, weakref
from collections import namedtuple
from roost.actors.wire.definitions import DEFINITIONS
from roost.actors.wire.pickling import pack, unpack

class Peer:
    def __init__(self):
        command = [sys.executable, {peer!r}]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.sent = set()
    def __call__(self, function, *args):
        "What `function(*args)` gives there."
        packed = pack((function, *args))
        self.new = [id for id in packed.definitions if id not in self.sent]
        self.named = packed.definitions
        blobs = {{id: DEFINITIONS.blob(id) for id in self.new}}
        self.sent.update(blobs)
        pickle.dump((blobs, packed.data, [bytes(b) for b in packed.buffers]), self.child.stdin)
        self.child.stdin.flush()
        blobs, data, buffers = pickle.load(self.child.stdout)
        for id, blob in blobs.items():
            DEFINITIONS.learn(id, blob)
        return unpack(data, buffers)
    def close(self):
        self.child.stdin.close()
        self.child.wait(60)
        self.child.stdout.close()

def identity(x):
    return x

peer = Peer()
try:
{body}
finally:
    peer.close()
print("kept")
"""

PROMISES = {
    "a class is sent once and named after that": """
        @dataclasses.dataclass
        class Batch:
            size: int
            def doubled(self): return Batch(self.size * 2)
        got = peer(operator.methodcaller("doubled"), Batch(3))
        assert len(peer.new) == 1 and got == Batch(6) and type(got) is Batch
        got = peer(operator.methodcaller("doubled"), Batch(4))
        assert peer.new == [] and len(peer.named) == 1 and got == Batch(8)
    """,
    "a reply maps to the very class here, also the class itself": """
        class Thing: pass
        assert type(peer(identity, Thing())) is Thing
        assert peer(identity, Thing) is Thing
        assert peer(type, Thing()) is Thing
    """,
    "a class redefined is another class": """
        def define(n):
            class Model:
                def version(self): return n
            return Model
        First = define(1)
        kept = First()
        assert peer(operator.methodcaller("version"), kept) == 1
        Second = define(2)
        assert peer(operator.methodcaller("version"), Second()) == 2 and len(peer.new) == 1
        assert peer(operator.methodcaller("version"), kept) == 1 and peer.new == []
        assert peer(isinstance, kept, Second) is False
    """,
    "classes that refer to each other arrive as they do": """
        class Node:
            def tree(self): return Tree(self)
        class Tree:
            def __init__(self, root=None): self.root = root
            def node(self): return Node()
        class Leaf(Node):
            pass
        got = peer(operator.methodcaller("tree"), Leaf())
        assert type(got) is Tree and type(got.root) is Leaf
        assert len(peer.new) == 3
        assert type(peer(operator.methodcaller("node"), Tree())) is Node and peer.new == []
    """,
    "a base whose methods use its own subclass arrives whichever is asked for first": """
        class Base:
            def make(self): return Derived()
        class Derived(Base):
            def name(self): return super().make().__class__.__name__
        assert peer(operator.methodcaller("name"), Derived()) == "Derived"
        assert type(peer(operator.methodcaller("make"), Base())) is Derived
        assert peer(issubclass, Derived, Base)
    """,
    "enums dataclasses namedtuples generics slots and abstract classes arrive": """
        import abc
        class Colour(enum.Enum):
            RED = 1
            BLUE = 2
        class Flag(enum.IntFlag):
            A = 1
            B = 2
        Pair = namedtuple("Pair", "left right")
        class Typed(typing.NamedTuple):
            x: int
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            def __init__(self, item): self.item = item
        @dataclasses.dataclass(frozen=True, slots=True)
        class Frozen:
            colour: Colour
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
        class Square(Shape):
            def area(self): return 4
        for sent in [Colour.RED, Flag.A | Flag.B, Pair(1, 2), Typed(3), Frozen(Colour.BLUE)]:
            got = peer(identity, sent)
            assert got == sent and type(got) is type(sent), sent
        assert peer(identity, Colour.RED) is Colour.RED
        assert peer(identity, Box[int](5)).item == 5
        assert peer(operator.methodcaller("area"), Square()) == 4
        assert peer(dataclasses.fields, Frozen)[0].name == "colour"
    """,
    "instances with state of their own arrive": """
        class Ring:
            def __init__(self): self.me = self
        class Stated:
            def __getstate__(self): return {"x": 1}
            def __setstate__(self, state): self.y = state["x"] + 1
        class Made:
            def __new__(cls, x): self = super().__new__(cls); self.x = x; return self
            def __getnewargs__(self): return (self.x,)
        class Listed(list): pass
        class Numbered(int): pass
        class Failure(Exception):
            def __init__(self, code): super().__init__(code); self.code = code
        class Empty: pass
        ring = peer(identity, Ring())
        assert ring.me is ring
        assert peer(vars, Stated()) == {"y": 2}
        assert peer(identity, Made(7)).x == 7
        assert peer(identity, Listed([1, 2])) == [1, 2] and peer(identity, Numbered(3)) == 3
        assert peer(identity, Failure(9)).code == 9
        assert peer(vars, Empty()) == {}
    """,
    "a class made by a metaclass or in a function arrives": """
        class Meta(type):
            def __len__(cls): return 5
        class Counted(metaclass=Meta): pass
        def local():
            class Local: pass
            return Local
        Local = local()
        assert peer(len, Counted) == 5
        assert type(peer(identity, Local())) is Local
    """,
    "super and class cells work there": """
        class A:
            def hello(self): return "A"
        class B(A):
            def hello(self): return super().hello() + __class__.__name__
        assert peer(operator.methodcaller("hello"), B()) == "AB"
    """,
    "a function over constants is sent once": """
        SCALE = 3
        def helper(x): return x * SCALE
        def scaled(x, y=1): return helper(x) + y
        assert peer(scaled, 2) == 7 and len(peer.new) == 1
        assert peer(scaled, 3) == 10 and peer.new == []
    """,
    "the same lambda made again is the same definition": """
        for at in range(3):
            assert peer(lambda x: x + 1, at) == at + 1
            assert len(peer.new) == (at == 0)
    """,
    "a global rebound gives a new version at once": """
        global RATE
        RATE = 1
        def rate(): return RATE
        def outer(): return rate()
        assert peer(outer) == 1
        RATE = 2
        assert peer(outer) == 2 and len(peer.new) == 1
        RATE = 1
        assert peer(outer) == 1 and peer.new == []
        RATE = 1.0
        assert isinstance(peer(outer), float)
    """,
    "a cell or a default changed gives a new version": """
        def make(n):
            def get(): return n
            def put(m):
                nonlocal n
                n = m
            return get, put
        get, put = make(1)
        assert peer(get) == 1
        put(2)
        assert peer(get) == 2
        def defaulted(x=1): return x
        assert peer(defaulted) == 1
        defaulted.__defaults__ = (5,)
        assert peer(defaulted) == 5
    """,
    "a function over mutable state goes by value as it is at the call": """
        global seen
        seen = []
        def count(): seen.append(1); return len(seen)
        assert peer(count) == 1 and peer(count) == 1 and peer.named == ()
        seen.append(0)
        assert peer(count) == 2
    """,
    "a function that writes a global starts afresh in each message": """
        global total
        total = 0
        def add():
            global total
            total += 1
            return total
        assert peer(add) == 1 and peer(add) == 1 and peer.named == ()
    """,
    "recursion and functions that call each other arrive": """
        global even, odd
        def fact(n): return 1 if n < 2 else n * fact(n - 1)
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)
        assert peer(fact, 5) == 120
        assert peer(even, 10) is True and len(peer.new) == 1
        assert peer(even, 7) is False and peer.new == []
    """,
    "a function that came back is the same definition": """
        def f(x): return x
        got = peer(identity, f)
        assert pack(got).definitions == pack(f).definitions and got(3) == 3
    """,
    "a function that uses a class goes with it, and with its new version": """
        global Thing
        class Thing:
            n = 1
        def make(): return Thing().n
        assert peer(make) == 1 and len(peer.new) == 2
        class Thing:
            n = 2
        assert peer(make) == 2 and len(peer.new) == 2
    """,
    "a function is another version if a class in its annotations is": """
        def define():
            class Hint: pass
            return Hint
        Hint = define()
        def f(x: Hint) -> Hint: return x
        got = peer(identity, f)
        assert got.__annotations__["x"] is Hint
        First, Hint = Hint, define()
        def f(x: Hint) -> Hint: return x
        assert peer(identity, f).__annotations__["x"] is Hint is not First
    """,
    "decorated functions and partials arrive": """
        def twice(f):
            @functools.wraps(f)
            def inner(x): return f(f(x))
            return inner
        @twice
        def inc(x): return x + 1
        assert peer(inc, 1) == 3
        assert peer(functools.partial(pow, 2), 5) == 32
        assert peer(functools.partial(inc, 5)) == 7
    """,
    "ever changing versions end by value and stay right": """
        global step
        def at(): return step
        for step in range(20):
            assert peer(at) == step
        assert peer.named == ()
    """,
    "a class that is gone here is known again when an instance comes back": """
        def define():
            class Gone:
                def n(self): return 5
            return Gone
        peer(setattr, sys, "kept", None)
        def keep(x): import sys; sys.kept = x
        def back(): import sys; return sys.kept
        Gone = define()
        peer(keep, Gone())
        watch = weakref.ref(Gone)
        del Gone
        gc.collect()
        assert watch() is None
        assert peer(back).n() == 5
    """,
    "a class defined at the peer comes back and is learned here": """
        def define():
            class Theirs:
                def n(self): return 6
            return Theirs()
        got = peer(define)
        assert got.n() == 6
        assert peer(operator.methodcaller("n"), got) == 6 and type(peer(identity, got)) is type(got)
    """,
    "an unpicklable class says what in it is to blame": """
        import threading
        class Held:
            lock = threading.Lock()
        try:
            pack(([Held()],))
        except TypeError as error:
            assert ".lock: cannot pickle '_thread.lock'" in str(error), error
        else:
            raise AssertionError
        del Held.lock
        assert type(peer(identity, Held())) is Held
    """,
}


@pytest.mark.parametrize("promise", PROMISES)
def test_between_two_processes(promise, tmp_path):
    peer, script = tmp_path / "peer.py", tmp_path / "script.py"
    peer.write_text(PEER)
    body = textwrap.indent(textwrap.dedent(PROMISES[promise]), "    ")
    script.write_text(SCRIPT.format(peer=str(peer), body=body))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "kept\n", ran.stderr


def local_class(n: int = 0) -> type:
    class Local:
        number = n

    return Local


def test_an_unknown_id_is_told_not_guessed():
    table = Definitions()
    for ask in (table.blob, table.resolve):
        with pytest.raises(DefinitionMissing, match="0102"):
            ask(b"\1\2")
    packed = pack(local_class()())
    with pytest.raises(DefinitionMissing):
        unpack(packed.data.replace(packed.definitions[0], bytes(12)), [])


def test_importable_things_have_no_definition():
    for obj in (int, Definitions, textwrap.dedent):
        assert pack(obj).definitions == ()
        with pytest.raises(ValueError, match="importable name"):
            Definitions().id_of(obj)


def test_one_table_teaches_another():
    ours, theirs = Definitions(), Definitions()
    Local = local_class(4)
    id = ours.id_of(Local)
    assert ours.id_of(Local) == id and len(id) == 12 and ours.resolve(id) is Local
    theirs.learn(id, ours.blob(id))
    theirs.learn(id, ours.blob(id))
    learned = theirs.resolve(id)
    assert learned is theirs.resolve(id) and learned.number == 4
    assert theirs.id_of(learned) == id and theirs.blob(id) == ours.blob(id)
    assert repr(theirs).startswith("Definitions(1 known")


def test_learning_runs_nothing(monkeypatch):
    source, table = Definitions(), Definitions()
    ran = []
    monkeypatch.setattr(sys, "ran_by_definition", ran, raising=False)

    class Loud(type):
        def __init__(cls, *args):
            sys.ran_by_definition.append(cls)

    Local = Loud("Local", (), {})
    ran.clear()
    ids = [source.id_of(Local), source.id_of(Loud)]
    for id in ids:
        table.learn(id, source.blob(id))
    assert not ran
    table.resolve(ids[0])
    assert ran


def test_two_classes_of_equal_text_are_two_definitions():
    assert pack(local_class()).definitions != pack(local_class()).definitions


def test_a_dead_class_leaves_the_table_in_time(monkeypatch):
    monkeypatch.setattr("roost.actors.wire.definitions.MAX_DEAD", 3)
    table = Definitions()
    for at in range(10):
        Local = local_class(at)
        table.id_of(Local)
        watch = weakref.ref(Local)
        del Local
        gc.collect()
        assert watch() is None
    assert len(table._entries) == 3
    assert not any(entry.id for entry in table.by_object.values()), "only what is importable is left"


def test_a_class_met_by_two_threads_at_once_is_made_once_and_whole_for_both():
    started, go = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self):
            started.set()
            assert go.wait(30)
            return int, ()

    Inner = local_class()

    class Shared:
        slow = Slow()
        inner = Inner

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pack, Shared())
        assert started.wait(30)
        second = threads.submit(pack, Shared())
        go.set()
        ids = [first.result(30).definitions, second.result(30).definitions]
    assert ids[0] == ids[1] and len(ids[0]) == 2
    assert all(DEFINITIONS.blob(id) for id in ids[0])


def test_what_needs_others_lists_them_all():
    Inner = local_class()

    class Middle:
        def make(self):
            return Inner

    class Outer(Middle):
        pass

    assert set(pack(Outer()).definitions) == {DEFINITIONS.id_of(each) for each in (Outer, Middle, Inner)}


def test_a_module_registered_by_value_is_as_main_from_then_on(monkeypatch):
    module = types.ModuleType("by_value_module")
    exec("class Thing: pass\ndef f(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "by_value_module", module)
    assert pack([module.Thing(), module.f]).definitions == ()
    cloudpickle.register_pickle_by_value(module)
    try:
        assert len(pack([module.Thing(), module.f]).definitions) == 2
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_many_functions_of_one_process_end_by_value(monkeypatch):
    monkeypatch.setattr("roost.actors.wire.definitions.MAX_FUNCTIONS", 2)
    table = Definitions()
    functions = [eval(f"lambda: {n}") for n in range(3)]
    table.id_of(functions[0])
    table.id_of(functions[1])
    with pytest.raises(ValueError, match="by value"):
        table.id_of(functions[2])
    assert table.id_of(functions[0])
