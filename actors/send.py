"""`send`: one call whose answers go to a port of the caller's choice."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any, Literal

from .errors import MeshFailure
from .future import Future
from .port import Port

if TYPE_CHECKING:
    from ..mesh.endpoints import MeshEndpoint

logger = logging.getLogger("roost.actors")

Selection = Literal["all", "choose"] | int


def send(
    endpoint: MeshEndpoint[Any, Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    port: Port[Any] | None = None,
    selection: Selection = "all",
) -> None:
    """Call an endpoint and have the answers sent to `port`, each with its rank as the sender's; wait for nothing.

    `selection` is "all" ranks of the mesh, "choose" for one drawn at random, or the number of one. What a rank raises
    reaches the port as an exception, the death of a rank too. Without a port there are no answers, as with
    `broadcast`. Raises TypeError for arguments that do not fit the signature, IndexError for a rank that is not there.

    >>> port, receiver = Channel.open_ranked()                        # doctest: +SKIP
    >>> send(counters.add, (1,), {}, port); receiver.recv().get()     # doctest: +SKIP
    (0, 6)
    """
    kwargs = dict(kwargs or {})
    size = len(endpoint._mesh)
    if selection == "all":
        if port is None:
            endpoint.broadcast(*args, **kwargs)
            return
        for answer in endpoint.options(with_rank=False).stream(*args, **kwargs):
            _forward(answer, port, None)
        return
    rank = random.randrange(size) if selection == "choose" else selection
    if not isinstance(rank, int):
        raise ValueError(f'selection={selection!r}: there are "all", "choose" and the number of a rank')
    if not 0 <= rank < size:
        raise IndexError(f"selection={rank}: {endpoint!r} has {size} ranks")
    node, peers, packed = endpoint._begin(args, kwargs, rank)
    if port is None:
        endpoint._send_many(node, None, [(rank, peers[rank])], packed, 0, 0)
    else:
        _forward(endpoint._send_one(node, peers[rank], rank, packed), port, rank)


def _forward(answer: Future[Any], port: Port[Any], rank: int | None) -> None:
    """Pass an answer on when it is there: within this process as it came, unpickled by whoever receives it."""

    def done() -> None:
        here = port._mailbox()
        whose = rank if rank is not None else answer.rank  # type: ignore[attr-defined]
        if here is not None:
            here.put(whose, answer)
        else:
            answer.add_done_callback(lambda future: _pass_on(future, port, whose))

    if not answer._when_done(done):
        done()


def _pass_on(answer: Future[Any], port: Port[Any], rank: int) -> None:
    """To a port of another process, on the callback thread."""
    try:
        try:
            value = answer.get()
        except Exception as error:  # noqa: BLE001 - it is the answer
            port._send_error(error, rank)
        else:
            port._send_as(value, rank)
    except MeshFailure as error:
        logger.debug("an answer for %r had nowhere to go: %s", port, error)
