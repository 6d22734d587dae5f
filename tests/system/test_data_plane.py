"""Promises of RDMABuffer, versioned weights and collectives, between actors, on one agent and on two."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="tensors need torch")

from workshop import Keeper, Member  # noqa: E402

from roost import ActorDied, Channel, RDMABuffer  # noqa: E402
from roost.rdma import OwnerDied, StaleBuffer  # noqa: E402
from roost.rdma.collectives import abort_process_group, destroy_process_group, init_process_group  # noqa: E402

PATIENCE = 30


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4),
        torch.arange(24.0).view(4, 6).t(),
        torch.arange(24, dtype=torch.int32).view(4, 6)[1:, ::2],
        torch.ones(5, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        torch.tensor(3.5),
    ],
    ids=["contiguous", "transposed", "strided", "bfloat16", "empty", "zero-dimensional"],
)
def test_any_actor_reads_a_tensor_of_any_layout(spawn: Callable[..., Any], tensor: Any) -> None:
    keepers = spawn(Keeper, n=2)
    buffer = keepers.slice(gpus=0).hold.call_one("t", tensor).get(PATIENCE)
    read, _ = keepers.slice(gpus=1).read.call_one(buffer, tensor).get(PATIENCE)
    assert torch.equal(read, tensor) and read.dtype == tensor.dtype


def test_a_write_lands_in_the_owners_tensor(spawn: Callable[..., Any]) -> None:
    keeper = spawn(Keeper, n=2).slice(gpus=1)
    buffer = keeper.hold.call_one("t", torch.zeros(2, 3)).get(PATIENCE)
    buffer.write_from(torch.arange(6.0).view(2, 3)).get(PATIENCE)
    assert torch.equal(keeper.value.call_one("t").get(PATIENCE), torch.arange(6.0).view(2, 3))


def test_the_way_is_one_host_or_the_network(site: Any, spawn: Callable[..., Any]) -> None:
    keepers = spawn(Keeper, n=2)
    tensor = torch.ones(1000)
    buffer = keepers.slice(gpus=0).hold.call_one("t", tensor).get(PATIENCE)
    _, way = keepers.slice(gpus=1).read.call_one(buffer, tensor).get(PATIENCE)
    assert way.startswith("cma" if site.agents == 1 else "tcp"), way


def test_a_read_needs_nothing_of_a_busy_owner(spawn: Callable[..., Any], tmp_path: Path) -> None:
    keeper = spawn(Keeper, n=2).slice(gpus=0)
    buffer = keeper.hold.call_one("t", torch.arange(1000.0)).get(PATIENCE)
    port, started = Channel.open()
    spinning = keeper.spin_until.call_one(port, str(tmp_path / "stop"))
    started.recv().get(PATIENCE)
    into = torch.empty(1000)
    buffer.read_into(into).get(PATIENCE)
    assert torch.equal(into, torch.arange(1000.0)) and not spinning.done()
    (tmp_path / "stop").touch()
    assert spinning.get(PATIENCE) >= 0


def test_a_destination_that_does_not_fit_is_refused_at_the_call(spawn: Callable[..., Any]) -> None:
    buffer = spawn(Keeper, n=2).slice(gpus=0).hold.call_one("t", torch.ones(8)).get(PATIENCE)
    for wrong in (torch.empty(7), torch.empty(8, dtype=torch.float64), torch.empty(2, 4)):
        with pytest.raises(ValueError, match=r"float32\[8\]"):
            buffer.read_into(wrong)


def test_a_dropped_buffer_is_stale_for_its_readers(spawn: Callable[..., Any]) -> None:
    mine = torch.ones(100)
    buffer = RDMABuffer(mine)
    keeper = spawn(Keeper, n=2).slice(gpus=1)
    assert torch.equal(keeper.read.call_one(buffer, mine).get(PATIENCE)[0], mine)
    held = keeper.read.call_one(buffer, mine)
    held.get(PATIENCE)
    buffer.drop()
    with pytest.raises(StaleBuffer):
        buffer.read_into(torch.empty(100)).get(PATIENCE)


def test_memory_is_released_with_the_last_handle(spawn: Callable[..., Any]) -> None:
    keepers = spawn(Keeper, n=2)
    owner, reader = keepers.slice(gpus=0), keepers.slice(gpus=1)
    tensor = torch.ones(1000)
    buffer = owner.hold.call_one("t", tensor).get(PATIENCE)
    reader.read.call_one(buffer, tensor).get(PATIENCE)
    assert owner.exports.call_one().get(PATIENCE) == 1
    del buffer
    gc.collect()
    for _ in range(2000):  # the news of a handle's end travels on its own; each question gives it time
        if owner.exports.call_one().get(PATIENCE) == 0:
            return
        reader.exports.call_one().get(PATIENCE)
    raise AssertionError("the buffer is still open though nobody holds a handle")


def test_a_dead_owner_fails_its_readers(spawn: Callable[..., Any], site: Any) -> None:
    import os
    import signal

    keeper = spawn(Keeper, n=2).slice(gpus=1)
    tensor = torch.ones(1000)
    buffer = keeper.hold.call_one("t", tensor).get(PATIENCE)
    port, started = Channel.open()
    busy = keeper.spin_until.call_one(port, "/nowhere/at/all")
    os.kill(started.recv().get(PATIENCE), signal.SIGKILL)
    with pytest.raises(ActorDied):
        busy.get(PATIENCE)
    with pytest.raises((OwnerDied, StaleBuffer)):
        buffer.read_into(torch.empty(1000)).get(PATIENCE)


def test_pulled_weights_are_never_half_a_version(spawn: Callable[..., Any]) -> None:
    keepers = spawn(Keeper, n=2)
    trainer, generator = keepers.slice(gpus=0), keepers.slice(gpus=1)
    size, last = 200_000, 60
    source = trainer.open_source.call_one({"w": torch.zeros(size)}).get(PATIENCE)
    trainer.publish.call_one({"w": torch.zeros(size)}, 0).get(PATIENCE)
    pulling = generator.pull_many.call_one(source, size, last)
    port, started = Channel.open()
    publishing = trainer.publish_many.call_one(size, last, port)
    started.recv().get(PATIENCE)
    seen = pulling.get(60)
    publishing.get(PATIENCE)
    assert seen[-1][0] == last
    assert [version for version, _, _ in seen] == sorted({version for version, _, _ in seen})
    assert all(least == largest == version for version, least, largest in seen), seen


def test_a_state_dict_that_differs_is_refused(spawn: Callable[..., Any]) -> None:
    keeper = spawn(Keeper, n=2).slice(gpus=0)
    source = keeper.open_source.call_one({"w": torch.zeros(4)}).get(PATIENCE)
    keeper.publish.call_one({"w": torch.ones(4)}, 1).get(PATIENCE)
    with pytest.raises(ValueError, match="differs from the published one"):
        source.pull({"w": torch.zeros(5)})
    with pytest.raises(ValueError, match="differs from the published one"):
        keeper.publish.call_one({"v": torch.ones(4)}, 2).get(PATIENCE)
    into = {"w": torch.zeros(4)}
    assert source.pull(into) == 1 and torch.equal(into["w"], torch.ones(4))
    assert source.pull(into, newer_than=1) is None


# collectives


def test_a_group_over_a_mesh_reduces_and_sets_what_torchrun_sets(site: Any) -> None:
    procs = site.spawn_procs(4)
    members = procs.spawn("member", Member)
    assert init_process_group(procs, timeout=PATIENCE) == "gloo"
    assert members.all_reduce.call(1.0).get(PATIENCE).values() == [10.0] * 4
    assert members.world.call().get(PATIENCE).values() == [(rank, 4, "gloo") for rank in range(4)]
    environments = members.environment.call().get(PATIENCE).values()
    assert [e["RANK"] for e in environments] == ["0", "1", "2", "3"]
    local = ["0", "1", "2", "3"] if site.agents == 1 else ["0", "1", "0", "1"]
    assert [e["LOCAL_RANK"] for e in environments] == local
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"], e["WORLD_SIZE"]) for e in environments}) == 1
    destroy_process_group(procs)


def test_a_group_over_a_slice_and_again_over_the_mesh(site: Any) -> None:
    procs = site.spawn_procs(4)
    members = procs.spawn("member", Member)
    pair = {"gpus": slice(1, 4, 2)}
    init_process_group(procs.slice(**pair), timeout=PATIENCE)
    assert members.slice(**pair).all_reduce.call(0.0).get(PATIENCE).values() == [1.0, 1.0]
    init_process_group(procs, timeout=PATIENCE)
    assert members.all_reduce.call(0.0).get(PATIENCE).values() == [6.0] * 4
    destroy_process_group(procs)


def test_an_env_script_joins_the_same_store(site: Any) -> None:
    procs = site.spawn_procs(2)
    members = procs.spawn("member", Member)
    init_process_group(procs, timeout=PATIENCE)
    assert members.env_script.call().get(PATIENCE).values() == [2.0, 2.0]


def test_a_collective_that_hangs_is_aborted_and_the_actors_live_on(site: Any) -> None:
    procs = site.spawn_procs(4)
    members = procs.spawn("member", Member)
    init_process_group(procs, timeout=120)
    port, started = Channel.open()
    hanging = [members.slice(gpus=rank).reduce_alone.call_one(port) for rank in (1, 2, 3)]
    assert sorted(started.recv().get(PATIENCE) for _ in hanging) == [1, 2, 3]
    abort_process_group(procs)
    for future in hanging:
        with pytest.raises(RuntimeError, match="peer"):
            future.get(PATIENCE)
    init_process_group(procs, timeout=PATIENCE)
    assert members.all_reduce.call(0.0).get(PATIENCE).values() == [6.0] * 4
    destroy_process_group(procs)


def test_a_group_is_rebuilt_after_a_member_died(site: Any) -> None:
    import os
    import signal

    procs = site.spawn_procs(4)
    members = procs.spawn("member", Member)
    init_process_group(procs, timeout=PATIENCE)
    keeper = procs.slice(gpus=3).spawn("keeper", Keeper)
    port, started = Channel.open()
    busy = keeper.spin_until.call_one(port, "/nowhere/at/all")
    os.kill(started.recv().get(PATIENCE), signal.SIGKILL)
    with pytest.raises(ActorDied):
        busy.get(PATIENCE)
    rest = procs.slice(gpus=slice(0, 3))
    abort_process_group(rest)
    init_process_group(rest, timeout=PATIENCE)
    assert members.slice(gpus=slice(0, 3)).all_reduce.call(0.0).get(PATIENCE).values() == [3.0] * 3
    destroy_process_group(rest)


def test_fsdp2_runs_over_a_mesh(site: Any) -> None:
    procs = site.spawn_procs(2)
    members = procs.spawn("member", Member)
    init_process_group(procs, timeout=PATIENCE)
    (first, kind), (second, _) = members.sharded_step.call().get(60).values()
    assert first == pytest.approx(second) and kind == "DTensor"
    destroy_process_group(procs)
