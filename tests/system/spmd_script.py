"""A script for torchrun that knows nothing of Roost."""

import os
import sys

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    folder = sys.argv[1]
    with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
        file.write(f"{total.item()} {dist.get_world_size()} {' '.join(sys.argv[2:])}")
    if "--exit" in sys.argv:
        sys.exit(3)
    if "--raise" in sys.argv:
        raise ValueError("the script fails")
