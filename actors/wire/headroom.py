"""How much memory this process may still take, by the machine and by each cgroup it is in.

Pages of a memfd past a cgroup's limit are not an error that could be handled: they end in SIGKILL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Names:
    """What the files of one version of the cgroup interface are called."""

    limit: str
    usage: str
    cache: str  # the line of memory.stat with page cache that the kernel drops first


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def headroom(proc: Path = Path("/proc")) -> int:
    """Bytes that can be taken before the machine is full or a cgroup kills; 0.5 ms.

    Page cache that the kernel would drop counts as free. `proc` is where procfs is mounted.
    """
    room = [_available(proc / "meminfo")]
    for folder, names in _cgroups(proc):
        limit = _number(folder / names.limit)
        usage = _number(folder / names.usage)
        if limit is not None and usage is not None:
            room.append(limit - usage + _field(folder / "memory.stat", names.cache))
    return max(0, min(room))


def _available(meminfo: Path) -> int:
    return _field(meminfo, "MemAvailable:") * 1024


def _cgroups(proc: Path) -> Iterator[tuple[Path, _Names]]:
    """The folders of this process's memory cgroup and of those around it, innermost first."""
    mounts = {kind: (root, point) for kind, root, point in _mounts(_text(proc / "self/mountinfo"))}
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        kind = "cgroup2" if not controllers else "cgroup" if "memory" in controllers.split(",") else ""
        if kind in mounts:
            root, point = mounts[kind]
            inside = PurePosixPath(path)
            # In a container the mount shows a part of the tree only, and may begin at our own group.
            steps = inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath(path.lstrip("/"))
            for folder in (steps, *steps.parents):
                yield Path(point) / folder, _V2 if kind == "cgroup2" else _V1


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, str]]:
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        root, point = mount.split()[3:5]
        kind, *_, options = source.split()
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            yield kind, root, point


def _field(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        parts = line.split()
        if parts and parts[0] == name:
            return int(parts[1])
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max": no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
