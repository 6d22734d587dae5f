"""Classes and functions that a peer cannot import: sent once, then named by an id.

A class of `__main__`, of a notebook, of a function's `<locals>` or of a module given to
`cloudpickle.register_pickle_by_value` has no name under which another process finds it. Cloudpickle
sends the whole of it in every message (153 us and 4 KB for a small dataclass). Here a message holds a
12-byte id, and a peer that has not yet learned the id is sent the *blob* first, once.

An id names one object in one version:

* a class is its own version. Redefining it (running the notebook's cell again) makes another object
  and so another id. The blob is what the class was when it was first sent: a method patched in, or a
  global of its methods rebound, after that is not seen by peers until the class is redefined.
* a function goes by id if all it closes over (globals it reads, cells, defaults, attributes) is
  atomic or is a module, a class or such a function. All of that is part of its version, so rebinding
  a global or a cell gives a new id, and running the same cell again gives the old one. A function
  that holds or writes mutable state, or whose version has changed `MAX_VERSIONS` times, is data rather than a
  definition and goes by value in each message: what was sent is what it was at the call.

Ids are random, not hashes: they must differ for two classes of equal text (`isinstance` tells them
apart here, so it must there), and what makes functions equal is compared in the process that has them.

Blobs name other such classes by id, so a class used by ten others is one class at the peer too; the
ids a blob needs stand in its head. Classes may refer to each other in a ring: an object is entered
under its id as a skeleton, before its state is read.
"""

from __future__ import annotations

import copyreg
import io
import linecache
import os
import pickle
import threading
import types
import weakref
from collections import ChainMap, deque
from collections.abc import Callable
from itertools import chain
from typing import cast

import cloudpickle
from cloudpickle import cloudpickle as _cloudpickle

from .fingerprint import NotConstant, fingerprint

ID_BYTES = 12
MAX_VERSIONS = 8  # of one code object; past that its functions go by value
MAX_FUNCTIONS = 4096  # known by id in one process; past that new ones go by value
MAX_DEAD = 1024  # blobs kept of own classes that are gone here, for peers that still hold instances
MAX_SOURCE = 256 << 10  # characters of one file sent along for tracebacks

Reduced = tuple[object, ...]


class DefinitionMissing(LookupError):
    """A message names a class or function whose blob this process was never given."""

    def __init__(self, id: bytes) -> None:
        super().__init__(f"the definition {id.hex()} of a class or function has not arrived from its sender")
        self.id = id

    def __reduce__(self) -> tuple[type[DefinitionMissing], tuple[bytes]]:
        return DefinitionMissing, (self.id,)


class Entry:
    """One definition: its id, the object (weak unless it was learned), its blob and what that needs."""

    __slots__ = ("blob", "closure", "id", "kept", "new", "reduced", "requires", "skeleton", "target")

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.blob: bytes | None = None
        self.requires: tuple[bytes, ...] = ()
        self.closure: tuple[bytes, ...] | None = None  # requires, and what those require
        self.target: Callable[[], object | None] = _nothing
        self.kept: object | None = None
        self.skeleton: object | None = None  # while the blob is being unpickled
        self.reduced: Reduced | None = (_resolve, (id,)) if id else None
        self.new: Reduced | None = None  # for instances of a class without ways of its own of being pickled


def _nothing() -> None:
    return None


_local = threading.local()  # .table: the Definitions whose resolve() is running in this thread
_by_value_modules: set[str] = getattr(_cloudpickle, "_PICKLE_BY_VALUE_MODULES", set())


_OBJECTS_OWN = (
    "__reduce__",
    "__reduce_ex__",
    "__new__",
    *(["__getstate__"] if hasattr(object, "__getstate__") else []),
)


def _is_plain(cls: type) -> bool:
    """Whether an instance is no more than its class and its `__dict__`."""
    return (
        all(getattr(cls, name) is getattr(object, name) for name in _OBJECTS_OWN)
        and not any(hasattr(cls, name) for name in ("__getnewargs__", "__getnewargs_ex__", "__slots__"))
        and cls not in copyreg.dispatch_table
        and cls.__dictoffset__ != 0
        and cls.__basicsize__ == _Plain.__basicsize__
    )


class _Plain:
    pass


def importable(obj: object) -> bool:
    """Whether a peer finds `obj`, a class or function, by its module and qualified name."""
    return bool(_cloudpickle._should_pickle_by_reference(obj))


class Definitions:
    """The classes and functions one process has sent or learned by id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[bytes, Entry] = {}
        self.by_object: dict[int, Entry] = {}  # by id(); a weak reference removes what dies
        self._watched: dict[int, weakref.ref[object]] = {}
        self._functions: dict[object, Entry] = {}  # by fingerprint
        self._versions: weakref.WeakKeyDictionary[types.CodeType, int] = weakref.WeakKeyDictionary()
        self._dead: deque[bytes] = deque()
        self._registered = len(_by_value_modules)

    def __repr__(self) -> str:
        blobs = [entry.blob for entry in list(self._entries.values()) if entry.blob is not None]
        return f"Definitions({len(self._entries)} known, {sum(map(len, blobs))} bytes of blobs)"

    def id_of(self, obj: object) -> bytes:
        """The id under which `obj`, a class or function, is named in messages.

        Raises ValueError for one that is sent by its importable name or by value.
        """
        entry = self.find(obj)
        if entry is None or entry is _IMPORTABLE:
            how = "by value" if entry is None else "by its importable name"
            raise ValueError(f"{obj!r} is sent {how}: it has no definition")
        return entry.id

    def refresh(self, obj: object) -> None:
        """Send a class anew when what it refers to has changed, such as a helper of the notebook it was defined in.

        For where new actors are spawned: a class that is merely sent keeps the version it was first sent in.
        """
        entry = self.find(obj)
        if entry is None or entry is _IMPORTABLE or entry.kept is not None or not isinstance(obj, type):
            return
        with self._lock:
            new = self._define(obj)
            old_data, new_data = (
                pickle.loads(each.blob)[1].replace(each.id, b"") for each in (entry, new) if each.blob
            )
            if old_data == new_data:
                del self._entries[new.id]
                self._watch(obj, entry)

    def blob(self, id: bytes) -> bytes:
        """What a peer needs to `learn(id)`. Raises DefinitionMissing."""
        entry = self._entries.get(id)
        if entry is None or entry.blob is None:
            raise DefinitionMissing(id)
        return entry.blob

    def learn(self, id: bytes, blob: bytes) -> None:
        """Take a peer's blob; nothing of it is run before the first `resolve`. Again is harmless."""
        with self._lock:
            if id not in self._entries:
                entry = Entry(id)
                entry.requires, entry.blob = pickle.loads(blob)[0], blob
                self._entries[id] = entry

    def knows(self, id: bytes) -> bool:
        return id in self._entries

    def resolve(self, id: bytes) -> object:
        """The class or function: the original where it was made, elsewhere one object for each id.

        Raises DefinitionMissing, and whatever importing what the definition needs raises.
        """
        entry = self._entries.get(id)
        if entry is None:
            raise DefinitionMissing(id)
        target = entry.target()
        return target if target is not None else self._load(entry)

    def requires(self, noted: dict[bytes, Entry]) -> tuple[bytes, ...]:
        """The ids in `noted` and all that their blobs name, in turn."""
        closures = [entry.closure or self._closure(entry) for entry in noted.values()]
        return closures[0] if len(closures) == 1 else tuple(dict.fromkeys(chain.from_iterable(closures)))

    def find(self, obj: object) -> Entry | None:
        """How a pickler saves a class or function: by `reduced` of its entry, by name if that is None.

        None: by value.
        """
        if self.stale():
            self.forget_importable()
        entry = self.by_object.get(id(obj))
        if entry is not None:
            return entry
        with self._lock:
            entry = self.by_object.get(id(obj))
            if entry is not None:
                return entry
            if importable(obj):
                self._watch(obj, _IMPORTABLE)
                return _IMPORTABLE
            if isinstance(obj, types.FunctionType):
                return self._find_function(obj)
            # Types as of code objects and of None are in no module; cloudpickle has a name for each.
            return self._define(obj) if len(_cloudpickle._class_reduce(obj)) > 2 else None

    def stale(self) -> bool:
        """Whether a module has been registered with cloudpickle to go by value since we looked."""
        return len(_by_value_modules) != self._registered

    def forget_importable(self) -> None:
        """Look again whether what was importable still is (a module was changed, or is now by value)."""
        with self._lock:
            self._registered = len(_by_value_modules)
            for key in [key for key, entry in self.by_object.copy().items() if entry is _IMPORTABLE]:
                self._unwatch(key)

    def after_fork(self) -> None:
        self._lock = threading.RLock()  # a thread that held it is not in the child

    # -- making

    def _find_function(self, function: types.FunctionType) -> Entry | None:
        try:
            key = fingerprint(function, self._name_class)
        except NotConstant:
            return None
        entry = self._functions.get(key)
        if entry is None:
            versions = self._versions.get(function.__code__, 0)
            if versions >= MAX_VERSIONS or len(self._functions) >= MAX_FUNCTIONS:
                return None
            self._versions[function.__code__] = versions + 1
            entry = self._define(function, watch=False)
            self._functions[key] = entry
        return entry

    def _name_class(self, cls: type) -> object:
        entry = self.find(cls)
        return (cls.__module__, cls.__qualname__) if entry is _IMPORTABLE or entry is None else entry.id

    def _define(self, obj: object, watch: bool = True) -> Entry:
        """Give `obj` an id and make its blob. Entered first: what refers back to it finds the id."""
        entry = Entry(os.urandom(ID_BYTES))  # drawn anew each time: children of a fork must not agree
        entry.target = weakref.ref(obj)
        self._entries[entry.id] = entry
        if watch:
            self._watch(obj, entry)
        try:
            saving = _BlobPickler(self, obj, entry.id)
            saving.dump(obj)
        except BaseException:
            del self._entries[entry.id]
            if watch:
                self._unwatch(id(obj))
            raise
        entry.requires = tuple(saving.noted)
        entry.blob = pickle.dumps((entry.requires, saving.file.getvalue(), saving.sources), 5)
        return entry

    def _closure(self, entry: Entry) -> tuple[bytes, ...]:
        with self._lock:  # another thread that is making the blob is waited for
            if entry.blob is None:
                raise pickle.PicklingError(f"the definition {entry.id.hex()} could not be made")
            found: dict[bytes, None] = {entry.id: None}
            waiting = list(entry.requires)
            while waiting:
                id = waiting.pop()
                if id not in found:
                    found[id] = None
                    known = self._entries.get(id)
                    waiting.extend(known.requires if known is not None else ())
            entry.closure = tuple(found)
            return entry.closure

    # -- loading

    def _load(self, entry: Entry) -> object:
        with self._lock:
            target = entry.target()
            if target is not None:
                return target
            if entry.skeleton is not None:
                return entry.skeleton
            if entry.blob is None:
                raise DefinitionMissing(entry.id)
            outer = getattr(_local, "table", None)
            _local.table = self
            try:
                _, data, sources = pickle.loads(entry.blob)
                _show_sources(sources)
                target = pickle.loads(data)
            finally:
                _local.table = outer
                entry.skeleton = None
            entry.kept = target
            self._watch(target, entry)
            entry.target = weakref.ref(target)
            return target

    def _begin(self, id: bytes, make: Callable[..., object], args: tuple[object, ...]) -> object:
        entry = self._entries[id]
        known = entry.target() or entry.skeleton
        if known is None:
            known = entry.skeleton = make(*args)
        return known

    # -- what dies

    def _watch(self, obj: object, entry: Entry) -> None:
        key = id(obj)

        def gone(_: object, importable: Entry = _IMPORTABLE, limit: int = MAX_DEAD) -> None:
            # The defaults are bound now: at the interpreter's end this module's globals are None.
            if self.by_object.get(key) is entry:
                self._unwatch(key)
            if entry is not importable:
                self._dead.append(entry.id)
                while len(self._dead) > limit:
                    self._entries.pop(self._dead.popleft(), None)

        if entry is not _IMPORTABLE and isinstance(obj, type) and _is_plain(obj):
            entry.new = (_new, (entry.id,))
        self._watched[key] = weakref.ref(obj, gone)
        self.by_object[key] = entry

    def _unwatch(self, key: int) -> None:
        self.by_object.pop(key, None)
        self._watched.pop(key, None)


class _BlobPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Saves one class or function by value, and other classes that peers cannot import by id.

    Functions inside (methods, and functions they use) go by value with it: they are part of it.
    """

    def __init__(self, table: Definitions, root: object, id: bytes) -> None:
        self.file = io.BytesIO()
        self.dispatch_table = ChainMap({types.CodeType: self._reduce_code}, cloudpickle.Pickler.dispatch_table)
        super().__init__(self.file, 5)  # which looks at the table
        self.noted: dict[bytes, Entry] = {}
        self.sources: dict[str, list[str]] = {}  # the lines of files that tracebacks will point to
        self._table = table
        self._root = root
        self._id = id

    def reducer_override(self, obj: object) -> object:
        if obj is self._root:
            make, args, *rest = super().reducer_override(obj)
            return (_begin, (self._id, make, args), *rest)
        if isinstance(obj, type):
            entry = self._table.find(obj)
            if entry is not None and entry.reduced is not None:
                self.noted[entry.id] = entry
                return entry.reduced
        return super().reducer_override(obj)

    def _reduce_code(self, code: types.CodeType) -> tuple[object, ...]:
        """Cloudpickle forgets which file code is from; a traceback without source lines helps nobody."""
        name = code.co_filename
        if name not in self.sources:
            lines = linecache.getlines(name)
            self.sources[name] = lines if sum(map(len, lines)) <= MAX_SOURCE else []
        return reduce_code(code)


_reduce_code = cloudpickle.Pickler.dispatch_table[types.CodeType]


def reduce_code(code: object) -> tuple[object, ...]:
    """As cloudpickle does, but the code keeps the name of its file."""
    make, arguments = _reduce_code(code)
    return _named_code, (cast(types.CodeType, code).co_filename, make, arguments)


def _named_code(name: str, make: Callable[..., types.CodeType], arguments: tuple[object, ...]) -> types.CodeType:
    return make(*arguments).replace(co_filename=name)


def _show_sources(sources: dict[str, list[str]]) -> None:
    """Let tracebacks here show lines of files that only the sender has, such as notebook cells."""
    for name, lines in sources.items():
        if lines and name not in linecache.cache and not os.path.exists(name):
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def _table() -> Definitions:
    return getattr(_local, "table", None) or DEFINITIONS


def _resolve(id: bytes) -> object:
    return _table().resolve(id)


def _new(id: bytes) -> object:
    return object.__new__(cast(type, _table().resolve(id)))


def _begin(id: bytes, make: Callable[..., object], args: tuple[object, ...]) -> object:
    return _table()._begin(id, make, args)


_IMPORTABLE = Entry(b"")  # stands for what needs no definition
DEFINITIONS = Definitions()
os.register_at_fork(after_in_child=DEFINITIONS.after_fork)
