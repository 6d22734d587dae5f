"""Several one-sided operations submitted together."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from roost.actors import Actor, ActorDied, endpoint  # noqa: E402
from roost.rdma import (  # noqa: E402
    OwnerDied,
    RDMAAction,
    RDMABuffer,
    RDMAError,
    StaleBuffer,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)

WAIT = 30.0


class Owner(Actor):
    """Opens memory."""

    def __init__(self) -> None:
        self.weights = torch.arange(12.0).view(3, 4)
        self.inbox = torch.zeros(8)

    @endpoint
    def buffers(self) -> tuple[RDMABuffer, RDMABuffer]:
        self.opened = RDMABuffer(self.weights), RDMABuffer(self.inbox)
        return self.opened

    @endpoint
    def look(self) -> list[float]:
        return list(self.inbox.tolist())

    @endpoint
    def change(self, value: float) -> None:
        self.weights.fill_(value)

    @endpoint
    def drop(self) -> None:
        self.opened[0].drop().get(timeout=WAIT)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Reader(Actor):
    """Submits from an endpoint, sync and async."""

    @endpoint
    def read(self, buffer: RDMABuffer) -> float:
        here = torch.empty(3, 4)
        RDMAAction().read_remote(here, buffer).submit().get(timeout=WAIT)
        return float(here.sum())

    @endpoint
    async def read_async(self, buffer: RDMABuffer) -> float:
        here = torch.empty(3, 4)
        await RDMAAction().read_remote(here, buffer).submit()
        return float(here.sum())


@pytest.fixture
def owner(spawn: Any) -> Any:
    return spawn(Owner, n=1).slice(gpus=0)


def test_reads_and_writes_go_together_and_again(owner: Any) -> None:
    weights, inbox = owner.buffers.call_one().get(timeout=WAIT)
    whole, flat, source = torch.empty(3, 4), torch.zeros(20), torch.ones(8)
    action = RDMAAction().read_remote(whole, weights).read_remote(flat, weights).write_remote(inbox, source)
    assert len(action) == 3
    assert action.submit().get(timeout=WAIT) is None
    assert whole.equal(torch.arange(12.0).view(3, 4))
    assert flat.tolist() == [*range(12), *[0.0] * 8], "the first bytes of a larger destination"
    assert owner.look.call_one().get(timeout=WAIT) == [1.0] * 8
    owner.change.call_one(7.0).get(timeout=WAIT)
    source.fill_(2.0)
    asyncio.run(asyncio.wait_for(action.submit(), WAIT))
    assert whole.equal(torch.full((3, 4), 7.0)), "submitted again it looks anew"
    assert owner.look.call_one().get(timeout=WAIT) == [2.0] * 8


def test_one_source_feeds_several_and_a_smaller_one_writes_the_first_bytes(owner: Any) -> None:
    weights, inbox = owner.buffers.call_one().get(timeout=WAIT)
    source = torch.tensor([5.0, 6.0])
    RDMAAction().write_remote(inbox, source).write_remote(weights, source).submit().get(timeout=WAIT)
    assert owner.look.call_one().get(timeout=WAIT) == [5.0, 6.0, *[0.0] * 6]
    here = bytearray(48)
    RDMAAction().read_remote(here, weights).submit().get(timeout=WAIT)
    assert torch.frombuffer(here, dtype=torch.float32)[:3].tolist() == [5.0, 6.0, 2.0]


def test_actors_submit_too(site: Any, owner: Any) -> None:
    weights, _ = owner.buffers.call_one().get(timeout=WAIT)
    reader = site.spawn_procs(2).spawn("reader", Reader)
    assert reader.read.call(weights).get(timeout=WAIT).values() == [66.0] * 2
    assert reader.read_async.call(weights).get(timeout=WAIT).values() == [66.0] * 2


def test_what_does_not_fit_is_refused_when_it_is_added(owner: Any) -> None:
    weights, inbox = owner.buffers.call_one().get(timeout=WAIT)
    action = RDMAAction()
    with pytest.raises(ValueError, match=r"48 bytes, the destination .* only 44"):
        action.read_remote(torch.empty(11), weights)
    with pytest.raises(ValueError, match="read-only"):
        action.read_remote(bytes(48), weights)
    with pytest.raises(ValueError, match=r"36 bytes, the destination .* only 32"):
        action.write_remote(inbox, torch.empty(9))
    with pytest.raises(ValueError, match="same dtype and shape"):
        action.read_remote(torch.empty(12, 2)[:, 0], weights)
    assert len(action) == 0
    assert action.submit().get(timeout=WAIT) is None
    for unknown in (action.fetch_add, action.compare_and_swap):
        with pytest.raises(NotImplementedError, match="let an endpoint of the owner"):
            unknown(inbox, 0, 1)


def test_one_failure_names_its_operation_and_the_others_are_done(owner: Any) -> None:
    weights, inbox = owner.buffers.call_one().get(timeout=WAIT)
    whole = torch.empty(3, 4)
    action = RDMAAction().write_remote(inbox, torch.ones(8)).read_remote(whole, weights)
    owner.drop.call_one().get(timeout=WAIT)
    future = action.submit()
    with pytest.raises(StaleBuffer, match=r"operation 2 of 2, read_remote of RDMABuffer\(float32\[3, 4\]"):
        future.get(timeout=WAIT)
    assert owner.look.call_one().get(timeout=WAIT) == [1.0] * 8
    assert isinstance(future.exception(), RDMAError)


def test_the_death_of_an_owner_fails_the_action(owner: Any) -> None:
    weights, _ = owner.buffers.call_one().get(timeout=WAIT)
    action = RDMAAction().read_remote(torch.empty(3, 4), weights)
    action.submit().get(timeout=WAIT)
    os.kill(owner.pid.call_one().get(timeout=WAIT), signal.SIGKILL)
    with pytest.raises(ActorDied):
        owner.pid.call_one().get(timeout=WAIT)
    with pytest.raises(OwnerDied, match="operation 1 of 1"):
        action.submit(timeout=10).get(timeout=WAIT)


def test_backends_are_told_as_they_are(owner: Any) -> None:
    weights, _ = owner.buffers.call_one().get(timeout=WAIT)
    assert is_rdma_available()
    assert not is_ibverbs_available()
    assert get_rdma_backend() in ("cma", "tcp")
    assert weights.backend in ("cma", "tcp")
    assert RDMABuffer(torch.zeros(2)).backend == "local"
    assert weights.size() == 48

    async def read() -> None:
        await weights.read_into(torch.empty(3, 4), timeout=WAIT).as_asyncio()

    asyncio.run(read())
    transfer = weights.read_into(torch.empty(3, 4))
    assert transfer.exception(timeout=WAIT) is None
    assert transfer.result(timeout=WAIT) is None
