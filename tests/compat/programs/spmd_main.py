"""A script for torchrun, run by actors; this file is that script too."""

import os
import sys

import torch
import torch.distributed as dist


def work(factor):
    dist.init_process_group("gloo")
    tensor = torch.tensor([float(factor) * (dist.get_rank() + 1)])
    dist.all_reduce(tensor)
    with open(os.path.join(sys.argv[2], f"rank{dist.get_rank()}"), "w") as file:
        file.write(f"{tensor.item()} {os.environ['LOCAL_RANK']} of {os.environ['WORLD_SIZE']}")
    dist.destroy_process_group()


def launch():
    import tempfile

    from monarch.actor import this_host
    from monarch.spmd import SPMDActor

    procs = this_host().spawn_procs(per_host={"gpus": 2})
    runners = procs.spawn("runners", SPMDActor)
    address, port = runners.slice(gpus=0).get_host_port.call_one(None).get()
    with tempfile.TemporaryDirectory() as folder:
        done = runners.main.call(address, port, [os.path.abspath(__file__), "5", folder]).get()
        print(list(done.values()))
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name)) as file:
                print(name, file.read())
    procs.stop().get()


if len(sys.argv) > 1:
    work(sys.argv[1])
else:
    launch()
