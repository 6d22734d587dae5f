"""torch.distributed inside of actors, set up as torchrun would."""

import os

import torch
import torch.distributed as dist
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env


class Rank(Actor):
    @endpoint
    def environment(self):
        return [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]

    @endpoint
    def reduce(self):
        dist.init_process_group("gloo")
        tensor = torch.tensor([1.0 + current_rank().rank])
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return tensor.item()


procs = this_host().spawn_procs(per_host={"gpus": 2})
ranks = procs.spawn("ranks", Rank)
setup_torch_elastic_env(procs)
print(list(ranks.environment.call().get().values()))
print(list(ranks.reduce.call().get().values()))
procs.stop().get()
