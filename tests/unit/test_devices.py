"""Devices of a host, told from fake /dev and /sys trees; masks; and who holds what."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.mesh import devices as devices_module
from roost.mesh.devices import Claims, DevicesUnavailable, HostDevices, detect, mask_variable, masks


def fake_nvidia(root: Path, *numbers: int) -> Path:
    """A fake root with NVIDIA's device files (plain files here) and its other files beside them."""
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-modeset", *(f"nvidia{n}" for n in numbers)):
        (root / "dev" / name).touch()
    return root


def fake_amd(root: Path, *gpu_ids: str) -> Path:
    """A fake root with /dev/kfd and a topology of these gpu_ids, one a node."""
    (root / "dev").mkdir()
    (root / "dev/kfd").touch()
    for node, gpu_id in enumerate(gpu_ids):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(gpu_id)
    return root


def test_a_host_without_device_files_has_only_its_cpu(tmp_path: Path) -> None:
    assert detect(tmp_path, {"CUDA_VISIBLE_DEVICES": "0"}) == HostDevices("cpu", ())


def test_nvidia_devices_are_counted_by_their_files(tmp_path: Path) -> None:
    assert detect(fake_nvidia(tmp_path, 0, 1, 10), {}) == HostDevices("cuda", ("0", "1", "2"))


def test_a_container_with_one_file_of_another_number_has_device_0(tmp_path: Path) -> None:
    assert detect(fake_nvidia(tmp_path, 3), {}).ids == ("0",)


def test_nvidia_files_without_a_gpu_are_no_gpu(tmp_path: Path) -> None:
    assert detect(fake_nvidia(tmp_path), {}).kind == "cpu"


@pytest.mark.parametrize(
    ("mask", "ids", "note"),
    [
        ("2,0", ("2", "0"), ""),
        (" 1 , 02", ("1", "2"), ""),
        ("GPU-8f3a,GPU-11bc", ("GPU-8f3a", "GPU-11bc"), ""),
        ("MIG-11aa", ("MIG-11aa",), ""),
        ("1,9,2", ("1",), "there is no device 9 among 4, so the list ends there"),
        ("1,-1,2", ("1",), ""),
        ("", (), "4 GPUs are hidden by CUDA_VISIBLE_DEVICES=''"),
        ("-1", (), "4 GPUs are hidden by CUDA_VISIBLE_DEVICES='-1'"),
        ("NoDevFiles", (), "4 GPUs are hidden"),
        ("7", (), "there is no device 7 among 4"),
        ("1,1", (), "names device 1 twice, which hides all 4"),
    ],
)
def test_the_mask_of_the_site_is_respected(tmp_path: Path, mask: str, ids: tuple[str, ...], note: str) -> None:
    found = detect(fake_nvidia(tmp_path, 0, 1, 2, 3), {"CUDA_VISIBLE_DEVICES": mask})
    assert found.ids == ids
    assert found.kind == ("cuda" if ids else "cpu")
    assert note in found.note and bool(note) == bool(found.note)


def test_amd_devices_are_the_gpu_nodes_of_the_topology(tmp_path: Path) -> None:
    root = fake_amd(tmp_path, "0\n", "0\n", "51140\n", "22683\n", "")
    assert detect(root, {}) == HostDevices("rocm", ("0", "1"))


def test_an_amd_node_that_may_not_be_read_is_no_device(tmp_path: Path) -> None:
    root = fake_amd(tmp_path, "0", "51140")
    (root / "sys/class/kfd/kfd/topology/nodes/2/gpu_id").mkdir(parents=True)  # reading it is an OSError
    assert detect(root, {}).ids == ("0",)


def test_a_topology_without_kfd_is_no_device(tmp_path: Path) -> None:
    root = fake_amd(tmp_path, "51140")
    (root / "dev/kfd").unlink()
    assert detect(root, {}).kind == "cpu"


@pytest.mark.parametrize(
    ("environ", "ids"),
    [
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ("3", "1")),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, ("2",)),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"HIP_VISIBLE_DEVICES": ""}, ("0", "1", "2", "3")),  # the runtime takes an empty one as unset
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, ("0", "1")),  # renumbers what HIP sees
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2"}, ()),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
    ],
)
def test_the_masks_of_rocm_are_read_as_hip_reads_them(
    tmp_path: Path, environ: dict[str, str], ids: tuple[str, ...]
) -> None:
    root = fake_amd(tmp_path, "0", "11", "12", "13", "14")
    assert detect(root, environ).ids == ids


class FakeNVMLError(Exception):
    pass


def fake_nvml(
    *, count: int = 0, init_fails: bool = False, count_fails: bool = False
) -> tuple[SimpleNamespace, list[str]]:
    """A fake of the pynvml module, and the names of the calls made to it."""
    calls: list[str] = []

    def call(name: str, fails: bool, result: object) -> object:
        def run() -> object:
            calls.append(name)
            if fails:
                raise FakeNVMLError(name)
            return result

        return run

    module = SimpleNamespace(
        NVMLError=FakeNVMLError,
        nvmlInit=call("init", init_fails, None),
        nvmlDeviceGetCount=call("count", count_fails, count),
        nvmlShutdown=call("shutdown", False, None),
    )
    return module, calls


def test_nvml_is_asked_first_and_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls = fake_nvml(count=2)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert detect(environ={}) == HostDevices("cuda", ("0", "1"))
    assert calls == ["init", "count", "shutdown"]


@pytest.mark.parametrize(("init_fails", "closed"), [(True, False), (False, True)])
def test_nvml_that_fails_leaves_the_files_to_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, init_fails: bool, closed: bool
) -> None:
    module, calls = fake_nvml(init_fails=init_fails, count_fails=True)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(devices_module, "_ROOT", fake_nvidia(tmp_path, 0))
    assert detect(tmp_path, {}).ids == ("0",)
    assert ("shutdown" in calls) is closed


def test_detection_imports_no_torch() -> None:
    code = "import sys, roost.mesh.devices as d; d.detect(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_one_variable_a_vendor() -> None:
    assert mask_variable("cuda") == "CUDA_VISIBLE_DEVICES"
    assert mask_variable("rocm") == "HIP_VISIBLE_DEVICES"
    assert mask_variable("cpu") is None


def test_every_process_sees_all_devices_in_one_order_and_local_rank_names_its_own() -> None:
    seen = [masks("cuda", ("4", "2", "7"), local_rank=rank, environ={}) for rank in range(3)]
    assert {env["CUDA_VISIBLE_DEVICES"] for env in seen} == {"4,2,7"}
    assert [env["LOCAL_RANK"] for env in seen] == ["0", "1", "2"]
    assert all("HIP_VISIBLE_DEVICES" not in env and "ROCR_VISIBLE_DEVICES" not in env for env in seen)


def test_a_mask_of_one_device_makes_it_number_0() -> None:
    env = masks("cuda", ("4", "2", "7"), "one", local_rank=2, environ={})
    assert (env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"]) == ("7", "0")


def test_ranks_that_share_a_device_by_name_see_it_once() -> None:
    seen = [masks("rocm", ("3", "3", "5"), local_rank=rank, environ={}) for rank in range(3)]
    assert [env["HIP_VISIBLE_DEVICES"] for env in seen] == ["3,5"] * 3
    assert [env["LOCAL_RANK"] for env in seen] == ["0", "0", "1"]


def test_no_mask_is_empty_and_none_is_set_where_nothing_was_claimed() -> None:
    for kind, variable in (("cuda", "CUDA_VISIBLE_DEVICES"), ("rocm", "HIP_VISIBLE_DEVICES")):
        assert masks(kind, None, local_rank=3, environ={}) == {"LOCAL_RANK": "3"}  # type: ignore[arg-type]
        assert masks(kind, (), local_rank=3, environ={}) == {variable: "-1", "LOCAL_RANK": "3"}  # type: ignore[arg-type]
    assert masks("cpu", (), local_rank=3, environ={}) == {"LOCAL_RANK": "3"}


def test_cuda_counts_by_bus_unless_the_environment_has_an_order_or_a_mask_already() -> None:
    def order(environ: dict[str, str]) -> str | None:
        return masks("cuda", ("0",), environ=environ).get("CUDA_DEVICE_ORDER")

    assert order({}) == "PCI_BUS_ID"
    assert order({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) is None
    assert order({"CUDA_VISIBLE_DEVICES": "0,1"}) is None


def test_a_rank_without_a_device_is_an_error_that_says_what_the_mesh_holds() -> None:
    with pytest.raises(ValueError, match=r"local rank 2 has no device: its mesh holds 2 on this host \(0, 1\)"):
        masks("cuda", ("0", "1"), local_rank=2)
    with pytest.raises(ValueError, match=r'"all" or "one", not \'two\''):
        masks("cuda", ("0", "1"), "two")  # type: ignore[arg-type]


def claims_of(n: int, note: str = "") -> Claims:
    return Claims(HostDevices("cuda" if n else "cpu", tuple(map(str, range(n))), note), host="node-1")


def test_claims_are_exclusive_and_in_device_order() -> None:
    claims = claims_of(4)
    assert claims.claim("a", 2) == ("0", "1") and claims.claim("b", 2) == ("2", "3")
    assert claims.free == () and claims.holders("1") == ("a",) and claims.held("b") == ("2", "3")
    assert claims.release("a") == ("0", "1")
    assert claims.claim("c", 1) == ("0",)
    assert repr(claims) == "<Claims on node-1: 1 of 4 free; b: GPUs 2, 3, c: GPU 0>"


def test_too_many_are_refused_with_what_was_wanted_and_who_holds_what() -> None:
    claims = claims_of(3)
    claims.claim("trainer", 2)
    with pytest.raises(DevicesUnavailable) as caught:
        claims.claim("generator", 2)
    assert str(caught.value) == (
        "2 GPUs wanted on node-1, 1 free.\n"
        "mesh `generator` wants 2; node-1 has 3, 1 free:\n"
        "  GPU 0  trainer\n"
        "  GPU 1  trainer\n"
        "  GPU 2  free"
    )
    assert claims.held("generator") == () and claims.free == ("2",)


def test_a_held_device_is_named_with_its_holder_and_the_way_to_share_it() -> None:
    claims = claims_of(4)
    claims.claim("trainer", [3])
    with pytest.raises(
        DevicesUnavailable, match=r'^GPU 3 is held by mesh `trainer`; to share it, say colocate="trainer"'
    ):
        claims.claim("generator", [2, 3])
    assert claims.free == ("0", "1", "2")
    with pytest.raises(DevicesUnavailable, match=r"^node-1 has no GPU 9\.\nmesh `generator` wants GPUs 0, 9;"):
        claims.claim("generator", ["0", "9"])


def test_devices_are_given_in_the_order_they_were_named() -> None:
    assert claims_of(4).claim("a", [3, "1"]) == ("3", "1")


def test_colocation_shares_with_the_mesh_that_was_named_and_no_other() -> None:
    claims = claims_of(4)
    claims.claim("trainer", 2)
    claims.claim("judge", [2])
    assert claims.claim("generator", 2, colocate="trainer") == ("0", "1")
    assert claims.claim("reference", [1, 3], colocate="generator") == ("1", "3")
    assert claims.holders("1") == ("trainer", "generator", "reference")
    with pytest.raises(DevicesUnavailable, match="GPU 2 is held by mesh `judge`"):
        claims.claim("x", [0, 2], colocate="trainer")
    with pytest.raises(DevicesUnavailable, match="3 GPUs wanted on node-1, 2 held by mesh `trainer`"):
        claims.claim("x", 3, colocate="trainer")
    with pytest.raises(DevicesUnavailable, match="there is no mesh `y` on node-1 to share with"):
        claims.claim("x", 1, colocate="y")
    claims.release("trainer")
    assert claims.holders("0") == ("generator",) and claims.free == ()


def test_one_claim_a_mesh_and_release_is_idempotent() -> None:
    claims = claims_of(2)
    claims.claim("a", 1)
    with pytest.raises(ValueError, match="mesh `a` already holds GPU 0 on node-1; release first"):
        claims.claim("a", 1)
    assert claims.release("a") == ("0",) and claims.release("a") == ()
    with pytest.raises(ValueError, match="at least 0"):
        claims.claim("a", -1)


def test_nothing_may_be_claimed_of_a_host_without_gpus_but_nothing() -> None:
    claims = claims_of(0, note="2 GPUs are hidden by CUDA_VISIBLE_DEVICES='-1'")
    assert claims.claim("a", 0) == ()
    with pytest.raises(DevicesUnavailable, match=r"wants 1; node-1 has no GPU \(2 GPUs are hidden by"):
        claims.claim("b", 1)


def test_uuids_are_named_as_they_are() -> None:
    claims = Claims(HostDevices("cuda", ("GPU-8f", "GPU-9a")), host="h")
    assert claims.claim("a", ["GPU-9a"]) == ("GPU-9a",)
    with pytest.raises(DevicesUnavailable, match=r"^GPU-9a is held by mesh `a`"):
        claims.claim("b", ["GPU-9a"])


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 3), st.sets(st.integers(0, 4)))))
)
def test_no_device_has_two_holders_without_colocation(steps: list[tuple[str, int | set[int] | None]]) -> None:
    claims = claims_of(4)
    for mesh, wanted in steps:
        before = {name: claims.held(name) for name in "abcd"}
        try:
            if wanted is None:
                claims.release(mesh)
            else:
                claims.claim(mesh, wanted if isinstance(wanted, int) else sorted(wanted))
        except (DevicesUnavailable, ValueError):
            assert before == {name: claims.held(name) for name in "abcd"}
        assert all(len(claims.holders(device)) <= 1 for device in "0123")
        assert len(claims.free) + sum(len(claims.held(name)) for name in "abcd") == 4


def test_the_examples_in_docstrings_hold() -> None:
    results = doctest.testmod(devices_module)
    assert results.attempted and not results.failed
