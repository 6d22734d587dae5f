"""Actors for the tests of the data plane; imported by workers."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from roost import Actor, Port, RDMABuffer, endpoint
from roost.rdma.weights import WeightSource


class Keeper(Actor):
    """Holds tensors and opens them."""

    def __init__(self) -> None:
        self.held: dict[str, torch.Tensor] = {}
        self.source: WeightSource | None = None

    @endpoint
    def hold(self, name: str, tensor: torch.Tensor) -> RDMABuffer:
        self.held[name] = tensor
        return RDMABuffer(tensor)

    @endpoint
    def value(self, name: str) -> torch.Tensor:
        return self.held[name]

    @endpoint
    def read(self, buffer: RDMABuffer, like: torch.Tensor) -> tuple[torch.Tensor, str]:
        into = torch.empty_like(like)
        buffer.read_into(into).get(timeout=30)
        return into, buffer.explain()

    @endpoint
    def exports(self) -> int:
        import gc

        from roost.rdma.registry import registry

        gc.collect()
        return len(registry()._exports)

    @endpoint
    def spin_until(self, started: Port[int], path: str) -> int:
        """Keep the interpreter busy until a file appears."""
        started.send(os.getpid())
        turns = 0
        while not os.path.exists(path):
            turns += 1
        return turns

    @endpoint
    def open_source(self, state: dict[str, torch.Tensor]) -> WeightSource:
        self.source = WeightSource(state)
        return self.source

    @endpoint
    def publish(self, state: dict[str, torch.Tensor], version: int) -> None:
        assert self.source is not None
        self.source.publish(state, version)

    @endpoint
    def publish_many(self, size: int, versions: int, started: Port[int]) -> None:
        """Publish version after version, each filled with its own number."""
        assert self.source is not None
        started.send(os.getpid())
        for version in range(1, versions + 1):
            self.source.publish({"w": torch.full((size,), float(version))}, version)

    @endpoint
    def pull_many(self, source: WeightSource, size: int, last: int) -> list[tuple[int, float, float]]:
        """Pull until version `last` has come: (version, least, largest) of each new one."""
        into = {"w": torch.zeros(size)}
        seen: list[tuple[int, float, float]] = []
        until = time.monotonic() + 60
        while (not seen or seen[-1][0] < last) and time.monotonic() < until:
            version = source.pull(into, newer_than=seen[-1][0] if seen else None)
            if version is not None:
                seen.append((version, float(into["w"].min()), float(into["w"].max())))
        return seen


class Member(Actor):
    """A member of a process group."""

    @endpoint
    def environment(self) -> dict[str, str]:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
        return {name: os.environ[name] for name in names if name in os.environ}

    @endpoint
    def all_reduce(self, value: float) -> float:
        import torch.distributed as dist

        tensor = torch.tensor([value + dist.get_rank()])
        dist.all_reduce(tensor)
        return float(tensor)

    @endpoint
    def world(self) -> tuple[int, int, str]:
        import torch.distributed as dist

        return dist.get_rank(), dist.get_world_size(), dist.get_backend()

    @endpoint
    def env_script(self) -> float:
        """What an unmodified env:// script does, in a process of its own group."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("gloo", init_method="env://")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return float(tensor)

    @endpoint
    def reduce_alone(self, started: Port[int]) -> str:
        """A collective that the others do not join."""
        import torch.distributed as dist

        started.send(dist.get_rank())
        dist.all_reduce(torch.ones(3))
        return "it returned"

    @endpoint
    def sharded_step(self) -> tuple[float, str]:
        """One FSDP2 step over the group."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        model: Any = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),)))
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        return float(loss.detach()), type(model.weight).__name__
