"""An actor replaced by another one, where the program spawns it and where an actor of the program does."""

from monarch._src.actor.mock import patch_actor
from monarch.actor import Actor, context, endpoint, this_host


class Store(Actor):
    @endpoint
    def fetch(self):
        return "from the network"


class FakeStore(Actor):
    @endpoint
    def fetch(self):
        return "made up"


class Reader(Actor):
    @endpoint
    def read(self):
        return context().actor_instance.proc.spawn("store", Store).fetch.call_one().get()


with patch_actor(Store, FakeStore):
    procs = this_host().spawn_procs()
    print(procs.spawn("store", Store).fetch.call_one().get())
    print(procs.spawn("reader", Reader).read.call_one().get())
print(this_host().spawn_procs().spawn("store", Store).fetch.call_one().get())
