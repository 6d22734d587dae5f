"""What needs a GPU: fork first and CUDA after, masks, NCCL. Each skips, with the reason, where there is none."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="tensors need torch")

from roost import Actor, endpoint  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]


class Device(Actor):
    """Uses the GPU in a worker that was forked from a process that had torch imported."""

    @endpoint
    def multiply(self, size: int) -> tuple[float, int]:
        device = f"cuda:{torch.cuda.current_device()}"
        ones = torch.ones(size, size, device=device)
        return float((ones @ ones)[0, 0]), torch.cuda.device_count()

    @endpoint
    def echo(self, tensor: Any) -> tuple[Any, str]:
        return tensor * 2, str(tensor.device)


def test_cuda_works_in_workers_forked_from_a_zygote_that_imported_torch(site: Any) -> None:
    devices = site.spawn_procs(2, preload=("torch",)).spawn("device", Device)
    assert devices.multiply.call(64).get(60).values() == [(64.0, torch.cuda.device_count())] * 2


def test_a_mask_in_the_environment_stands_before_cuda_is_asked(site: Any) -> None:
    devices = site.spawn_procs(2, env={"CUDA_VISIBLE_DEVICES": "0"}).spawn("device", Device)
    assert {count for _, count in devices.multiply.call(8).get(60).values()} == {1}


def test_cuda_tensors_keep_their_device_in_messages(site: Any) -> None:
    devices = site.spawn_procs(2).spawn("device", Device)
    tensor, where = devices.slice(gpus=0).echo.call_one(torch.ones(3, device="cuda:0")).get(60)
    assert where == "cuda:0" and tensor.device.type == "cuda" and tensor.sum().item() == 6.0
