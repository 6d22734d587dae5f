"""The last resort, replaced: a failure that nobody owns up to is told here, and the program goes on."""

import threading

import monarch.actor
from monarch.actor import Actor, MeshFailure, endpoint, this_host

told = []
arrived = threading.Event()


def remember(failure: MeshFailure) -> None:
    told.append(failure)
    arrived.set()


monarch.actor.unhandled_fault_hook = remember


class Fragile(Actor):
    @endpoint
    def crack(self):
        raise ValueError("cracked")


fragile = this_host().spawn_procs().spawn("fragile", Fragile)
fragile.crack.broadcast()
print(arrived.wait(30))
print(isinstance(told[0], MeshFailure), "fragile" in told[0].mesh_name, "cracked" in told[0].report())
print(monarch.actor.unhandled_fault_hook is remember)
