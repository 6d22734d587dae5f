"""Weights that generators read from the trainer's memory, which takes no part in it."""

import torch
from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMAAction, RDMABuffer, get_rdma_backend, is_ibverbs_available


class Server(Actor):
    def __init__(self, size):
        self.weights = torch.arange(size, dtype=torch.float32)
        self.grads = torch.zeros(size)

    @endpoint
    def handles(self):
        def handle(tensor):
            return RDMABuffer(tensor.view(torch.uint8).flatten())

        return handle(self.weights), handle(self.grads)

    @endpoint
    def step(self):
        self.weights -= self.grads
        return self.weights.sum().item()


class Learner(Actor):
    def __init__(self, size):
        self.weights = torch.zeros(size)

    @endpoint
    async def learn(self, weights: RDMABuffer, grads: RDMABuffer):
        mine = self.weights.view(torch.uint8).flatten()
        await weights.read_into(mine)
        seen = self.weights.sum().item()
        await grads.write_from(torch.ones_like(self.weights).view(torch.uint8).flatten())
        return seen

    @endpoint
    async def again(self, weights: RDMABuffer):
        larger = torch.zeros(weights.size() + 8, dtype=torch.uint8)
        action = RDMAAction().read_remote(larger, weights)
        await action.submit()
        await action.submit()
        return larger[: weights.size()].view(torch.float32).sum().item()


server = this_host().spawn_procs().spawn("server", Server, 8)
learner = this_host().spawn_procs().spawn("learner", Learner, 8)
weights, grads = server.handles.call_one().get()
print(weights.size(), get_rdma_backend() in ("ibverbs", "tcp"), is_ibverbs_available() in (True, False))
print(learner.learn.call_one(weights, grads).get())
print(server.step.call_one().get())
print(learner.again.call_one(weights).get())
short = torch.zeros(4, dtype=torch.uint8)
for misfit in (lambda: weights.read_into(short).get(), lambda: RDMAAction().read_remote(short, weights)):
    try:
        misfit()
    except ValueError as error:
        print("size" in str(error))
weights.drop().get()
grads.drop().get()
