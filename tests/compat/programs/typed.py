"""Annotations, subscripted classes, and the protocol of endpoints."""

from typing import TypeVar

from monarch._src.actor.actor_mesh import ActorMesh
from monarch._src.actor.endpoint import Endpoint as PrivateEndpoint
from monarch.actor import Actor, Channel, Endpoint, Future, Port, PortReceiver, ProcMesh, ValueMesh, endpoint, this_host

R = TypeVar("R")


class Adder(Actor):
    def __init__(self, base: int) -> None:
        self.base = base
        self.logger.debug("an adder of %d", base)

    @endpoint
    def add(self, value: int) -> int:
        return self.base + value

    @endpoint
    def into(self, port: "Port[int]", value: int) -> None:
        port.send(self.base + value)


def total(values: ValueMesh[int]) -> int:
    return sum(values.values())


def ask(call: "Endpoint[[int], R]", value: int) -> "Future[ValueMesh[R]]":
    return call.call(value)


procs: ProcMesh = this_host().spawn_procs(per_host={"gpus": 2})
adders = procs.spawn("adders", Adder, 5)
answer: Future[ValueMesh[int]] = ask(adders.add, 1)
print(total(answer.get()), isinstance(adders, ActorMesh), isinstance(adders, Actor))
print(PrivateEndpoint is Endpoint)
channel: tuple[Port[int], PortReceiver[int]] = Channel[int].open()
port, receiver = channel
adders.into.call(port, 2).get()
print([receiver.recv().get() for _ in range(2)])
