"""The end of the data plane in a process."""

from __future__ import annotations

from . import client, pool, server, service
from .home import set_home


def shutdown(timeout: float = 5.0) -> None:
    """Stop every thread and socket of the data plane, and forget its home; safe when none was started.

    What was released is told to its owners first, so call it while the runtime still sends. Transfers under
    way fail. Handles of memory here are not dropped, but nobody elsewhere reaches them by TCP any more. After
    it a new home may be set and all begins again. Waits `timeout` seconds at most for each kind of thread.
    """
    service.holdings().stop(timeout)
    client.stop()
    pool.stop(timeout)
    server.stop(timeout)
    set_home(None)
