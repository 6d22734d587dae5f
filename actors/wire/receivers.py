"""Who will unpickle what is being pickled: told to objects whose references are counted across processes.

Only the data plane's handles ask, so a message is pickled inside `for_receivers` only once one of its modules has set
`wanted` (a context variable set and reset costs 0.3 us a call).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from . import pickling

wanted = False
RECEIVERS: ContextVar[tuple[int, ...] | None] = ContextVar("roost_receivers", default=None)


def want() -> None:
    """From now on pickled messages say who gets them."""
    global wanted
    wanted = True


def pack_for(receivers: Iterable[int], obj: object, what: str) -> pickling.Packed:
    """`pickling.pack`, telling objects inside which processes will unpickle them, each once."""
    if not wanted:
        return pickling.pack(obj, what)
    token = RECEIVERS.set(tuple(receivers))
    try:
        return pickling.pack(obj, what)
    finally:
        RECEIVERS.reset(token)
