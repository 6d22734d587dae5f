"""A failure two levels down: the actor between has no say, the one above it is told where it began."""

import time

from monarch.actor import Actor, MeshFailure, endpoint, this_host


class Leaf(Actor):
    @endpoint
    async def fall(self):
        raise ValueError("the leaf fell")

    @endpoint
    async def colour(self):
        return "green"


class Branch(Actor):
    @endpoint
    async def grow(self):
        self.leaf = this_host().spawn_procs().spawn("leaf", Leaf)
        return self.leaf

    @endpoint
    async def shake(self):
        self.leaf.fall.broadcast()


class Tree(Actor):
    def __init__(self):
        self.told = []

    @endpoint
    async def grow(self):
        self.branch = this_host().spawn_procs().spawn("branch", Branch)
        return self.branch, await self.branch.grow.call_one()

    @endpoint
    async def report(self):
        return self.told

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(("branch" in failure.mesh_name, "the leaf fell" in failure.report()))
        return True


class Reader(Actor):
    def __init__(self, leaf):
        self.leaf = leaf

    @endpoint
    async def read(self):
        return await self.leaf.colour.call_one()


procs = this_host().spawn_procs()
tree = procs.spawn("tree", Tree)
branch, leaf = tree.grow.call_one().get()
print(leaf.colour.call_one().get())
print(this_host().spawn_procs().spawn("reader", Reader, leaf).read.call_one().get())
branch.shake.call_one().get()
until = time.monotonic() + 60
while not tree.report.call_one().get() and time.monotonic() < until:
    pass
print(tree.report.call_one().get())
