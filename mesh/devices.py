"""The accelerators of one host: which there are, who holds them, and the masks that show them to a process.

Detection reads /dev and /sys, and NVML where it is installed, and never imports torch: an agent has none.
Ids are what the vendor's mask takes (an index, or a UUID as the site's own mask gave it), in device order,
already cut to the mask this process was started under.

What a mask says, by what a mesh asked for:

| asked for          | mask                     | LOCAL_RANK                     |
|--------------------|--------------------------|--------------------------------|
| nothing (None)     | left as it is            | the local rank                 |
| no devices (empty) | "-1"                     | the local rank                 |
| devices            | all of the mesh, or one  | the process's own, in the mask |

No mask is ever empty. An empty HIP_VISIBLE_DEVICES counts as unset for the HIP runtime and shows every
GPU, and programs that test the variable for truth take an empty CUDA_VISIBLE_DEVICES the same way; "-1" is
no device for both. A mesh that claims nothing keeps the mask it inherits, so that an engine started within
still finds its devices. ROCR_VISIBLE_DEVICES is read, since it renumbers what HIP sees, and never set.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["cuda", "rocm", "cpu"]
PerProcess: TypeAlias = Literal["all", "one"]

_MASKS: Mapping[Kind, str] = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
_NO_DEVICE = "-1"
_ROOT = Path("/")


class DevicesUnavailable(RuntimeError):
    """A claim that cannot be met now; the text says what was wanted, what is there and who holds it."""


@dataclass(frozen=True, slots=True)
class HostDevices:
    """The devices of a host: their kind, their ids in device order, and a note when a mask looks wrong.

    Of kind "cpu" there are no ids, which is also what a host is whose GPUs are all hidden by its mask.
    """

    kind: Kind
    ids: tuple[str, ...] = ()
    note: str = ""


def detect(root: Path = _ROOT, environ: Mapping[str, str] | None = None) -> HostDevices:
    """The devices of this host that this process may use. `root` is the folder that holds dev and sys.

    Respects CUDA_VISIBLE_DEVICES; on ROCm ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES, then
    CUDA_VISIBLE_DEVICES, as HIP does. What follows an index that is not there is not visible; `note` says so.
    """
    env = os.environ if environ is None else environ
    if count := _nvidia_count(root):
        return _masked("cuda", count, "CUDA_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    if count := _amd_count(root):
        below = _masked("rocm", count, "ROCR_VISIBLE_DEVICES", env.get("ROCR_VISIBLE_DEVICES"))
        variable = "HIP_VISIBLE_DEVICES" if env.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
        if not below.ids:
            return below
        above = _masked("rocm", len(below.ids), variable, env.get(variable) or None)
        return HostDevices(above.kind, above.ids, "; ".join(filter(None, (below.note, above.note))))
    return HostDevices("cpu")


def mask_variable(kind: Kind) -> str | None:
    """The one variable that masks devices of this kind; None where there is nothing to mask."""
    return _MASKS.get(kind)


def masks(
    kind: Kind,
    ids: Sequence[str] | None,
    per_process: PerProcess = "all",
    local_rank: int = 0,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables for one process of a mesh that holds `ids` on this host, to be set before any import.

    `ids[local_rank]` is the process's own device; an id that stands there twice is shared by two ranks. With
    "all" every process sees all of them in one order and LOCAL_RANK is the place of its own, so that
    `cuda:{LOCAL_RANK}` and IPC work. With "one" it sees its own alone, and LOCAL_RANK is 0. `environ` is what
    the process will inherit.

    Raises ValueError when the local rank has no device.

    >>> masks("rocm", ("2", "3"), local_rank=1)
    {'HIP_VISIBLE_DEVICES': '2,3', 'LOCAL_RANK': '1'}
    >>> masks("rocm", ("2", "3"), "one", local_rank=1)
    {'HIP_VISIBLE_DEVICES': '3', 'LOCAL_RANK': '0'}
    >>> masks("rocm", None, local_rank=1), masks("rocm", (), local_rank=1)
    ({'LOCAL_RANK': '1'}, {'HIP_VISIBLE_DEVICES': '-1', 'LOCAL_RANK': '1'})
    """
    if per_process not in ("all", "one"):
        raise ValueError(f'per_process is "all" or "one", not {per_process!r}')
    variable = mask_variable(kind)
    if variable is None or ids is None:
        return {"LOCAL_RANK": str(local_rank)}
    if not ids:
        return {variable: _NO_DEVICE, "LOCAL_RANK": str(local_rank)}
    if not 0 <= local_rank < len(ids):
        raise ValueError(
            f"local rank {local_rank} has no device: its mesh holds {len(ids)} on this host "
            f"({', '.join(ids)}); ask for one a process, or name a device twice to share it"
        )
    own = ids[local_rank]
    shown = [own] if per_process == "one" else list(dict.fromkeys(ids))
    found = {variable: ",".join(shown), "LOCAL_RANK": str(shown.index(own))}
    env = os.environ if environ is None else environ
    if kind == "cuda" and not env.keys() & {"CUDA_DEVICE_ORDER", variable}:
        # Left alone CUDA numbers the fastest GPU first, where /dev and NVML number by bus. An inherited mask
        # was written by someone in the order that they had, so then that order stays.
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return found


class Claims:
    """Who holds which devices of one host. Exclusive, but for meshes that say whom they share with.

    Pure bookkeeping: nothing is opened or locked. Devices are given in device order.

    >>> claims = Claims(HostDevices("cuda", ("0", "1", "2", "3")), host="a")
    >>> claims.claim("trainer", 2), claims.claim("generator", 2, colocate="trainer"), claims.free
    (('0', '1'), ('0', '1'), ('2', '3'))
    >>> claims.claim("judge", [1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    roost.mesh.devices.DevicesUnavailable: GPU 1 is held by mesh `trainer` and mesh `generator`; to share ...
    """

    def __init__(self, devices: HostDevices, host: str = "this host") -> None:
        self._devices = devices
        self._host = host
        self._held: dict[str, tuple[str, ...]] = {}

    @property
    def free(self) -> tuple[str, ...]:
        """The ids that no mesh holds, in device order."""
        return tuple(device for device in self._devices.ids if not self.holders(device))

    def holders(self, device: str) -> tuple[str, ...]:
        """The meshes that hold a device, in order of their claims."""
        return tuple(mesh for mesh, held in self._held.items() if device in held)

    def held(self, mesh: str) -> tuple[str, ...]:
        """What a mesh holds, in the order of its claim; empty for one that has no claim here."""
        return self._held.get(mesh, ())

    def claim(self, mesh: str, wanted: int | Sequence[str | int], colocate: str | None = None) -> tuple[str, ...]:
        """Devices for a mesh: a number of free ones, or those named by id. All of them or none.

        With `colocate` the devices of the named mesh may be shared, with it and with those that share them
        already: a number takes the first of them, ids may be among those or free. An id may be named twice,
        for ranks that share it.

        Raises DevicesUnavailable at once where the claim cannot be met, with what there is and who holds it;
        ValueError for a negative number or a mesh that already has a claim here.
        """
        if mesh in self._held:
            raise ValueError(f"mesh `{mesh}` already holds {_named(self._held[mesh])} on {self._host}; release first")
        if colocate is not None and colocate not in self._held:
            raise self._unavailable(mesh, wanted, f"there is no mesh `{colocate}` on {self._host} to share with")
        if isinstance(wanted, int):
            ids = self._first(mesh, wanted, colocate)
        else:
            ids = self._those(mesh, tuple(str(device) for device in wanted), colocate)
        self._held[mesh] = ids
        return ids

    def release(self, mesh: str) -> tuple[str, ...]:
        """End a mesh's claim and return what it held; empty, and no error, when it had none."""
        return self._held.pop(mesh, ())

    def table(self) -> str:
        """Each device and its holders, one a line."""
        if not self._devices.ids:
            return f"{self._host} has no GPU" + (f" ({self._devices.note})" if self._devices.note else "")
        names = [(_named((device,)), self.holders(device)) for device in self._devices.ids]
        width = max(len(name) for name, _ in names)
        lines = [f"  {name:<{width}}  {', '.join(by) if by else 'free'}" for name, by in names]
        note = [f"  note: {self._devices.note}"] if self._devices.note else []
        return "\n".join([f"{self._host} has {len(names)}, {len(self.free)} free:", *lines, *note])

    def _first(self, mesh: str, n: int, colocate: str | None) -> tuple[str, ...]:
        if n < 0:
            raise ValueError(f"mesh `{mesh}` wants {n} devices; a number of devices is at least 0")
        pool = self.free if colocate is None else tuple(dict.fromkeys(self._held[colocate]))
        if n > len(pool):
            have = "free" if colocate is None else f"held by mesh `{colocate}`"
            raise self._unavailable(mesh, n, f"{n} GPUs wanted on {self._host}, {len(pool)} {have}")
        return pool[:n]

    def _those(self, mesh: str, ids: tuple[str, ...], colocate: str | None) -> tuple[str, ...]:
        for device in dict.fromkeys(ids):
            if device not in self._devices.ids:
                raise self._unavailable(mesh, ids, f"{self._host} has no {_named((device,))}")
            holders = self.holders(device)
            if holders and colocate not in holders:
                held = " and ".join(f"mesh `{holder}`" for holder in holders)
                share = f'to share it, say colocate="{holders[0]}"'
                raise self._unavailable(mesh, ids, f"{_named((device,))} is held by {held}; {share}")
        return ids

    def _unavailable(self, mesh: str, wanted: int | Sequence[str | int], why: str) -> DevicesUnavailable:
        amount = str(wanted) if isinstance(wanted, int) else _named([str(device) for device in wanted])
        return DevicesUnavailable(f"{why}.\nmesh `{mesh}` wants {amount}; {self.table()}")

    def __repr__(self) -> str:
        free = f"{len(self.free)} of {len(self._devices.ids)} free"
        held = ", ".join(f"{mesh}: {_named(ids)}" for mesh, ids in self._held.items())
        return f"<Claims on {self._host}: {'; '.join(filter(None, (free, held)))}>"


def _named(ids: Sequence[str]) -> str:
    """Ids for a reader: `GPU 3`, `GPUs 0, 1`; a UUID says itself what it is."""
    if not ids or not all(device.isdigit() for device in ids):
        return ", ".join(ids) or "no GPU"
    return f"GPU{'s' if len(ids) > 1 else ''} {', '.join(ids)}"


def _masked(kind: Kind, count: int, variable: str, mask: str | None) -> HostDevices:
    """What a mask leaves visible of `count` devices, by the rules of the vendors' runtimes."""
    if mask is None:
        return HostDevices(kind, tuple(map(str, range(count))))
    ids: list[str] = []
    note = ""
    for token in (part.strip() for part in mask.split(",")):
        if token.isdigit():
            token = str(int(token))
            if int(token) >= count:
                note = f"{variable}={mask}: there is no device {token} among {count}, so the list ends there"
                break
        elif not token.startswith(("GPU-", "MIG-")):
            break
        if token in ids:
            return HostDevices("cpu", (), f"{variable}={mask} names device {token} twice, which hides all {count}")
        ids.append(token)
    if ids:
        return HostDevices(kind, tuple(ids), note)
    return HostDevices("cpu", (), note or f"{count} GPUs are hidden by {variable}={mask!r}")


def _nvidia_count(root: Path) -> int:
    """NVML's count, which also sees GPUs that have no file here (WSL); else the number of device files.

    A file's number is not the device's: a container with /dev/nvidia3 alone has device 0.
    """
    counted = _nvml_count() if root == _ROOT else None
    if counted is not None:
        return counted
    return sum(1 for path in (root / "dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


def _nvml_count() -> int | None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _amd_count(root: Path) -> int:
    """The nodes of the kfd topology that are GPUs: a CPU has gpu_id 0, another container's cannot be read."""
    if not (root / "dev/kfd").exists():
        return 0
    count = 0
    for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"):
        try:
            count += path.read_text().strip() not in ("", "0")
        except OSError:
            continue
    return count
