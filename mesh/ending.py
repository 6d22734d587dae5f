"""`shutdown_context`: `shutdown()` as a Future, for coroutines and for those who will not wait for ever."""

from __future__ import annotations

import threading
from typing import Any

from ..actors.errors import CallTimeout
from ..actors.future import Future
from ..actors.link.readers import restore_interrupt_handler
from .local import shutdown


class _Ending(Future[None]):
    __slots__ = ()

    def _about(self) -> str:
        return "the shutdown"

    def _decode(self, raw: Any) -> None:
        restore_interrupt_handler()  # only the main thread may, and it was another that ended the runtime


def shutdown_context(timeout: float | None = None) -> Future[None]:
    """End everything that this program has spawned, as `shutdown()` does; begins at once, on a thread of its own.

    Fails with CallTimeout when it takes longer than `timeout` seconds; it goes on. In a program where nothing runs,
    and in a worker, it is done at once. A later `this_host()` starts afresh.

    >>> shutdown_context().get()
    """
    ending = _Ending()

    def end() -> None:
        try:
            shutdown()
        except Exception as error:  # noqa: BLE001 - raised where it is asked for
            ending.set_exception(error)
        else:
            ending.set_raw(None)

    def bound() -> None:
        worker.join(timeout)
        ending.set_exception(CallTimeout(f"the shutdown has not ended within {timeout:g} s; it goes on"))

    worker = threading.Thread(target=end, name="roost-shutdown")
    worker.start()
    if timeout is not None:
        threading.Thread(target=bound, name="roost-shutdown-bound", daemon=True).start()
    return ending
