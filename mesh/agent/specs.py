"""What the launcher is asked for: the workers of a spawn request, and the zygote they are forked from."""

from __future__ import annotations

from typing import Any

import msgpack

from ..launch import ProcSpec, ZygoteKey, zygote_key

WORKER_ENTRY = "roost.mesh.worker:main"
WORKER_MODULE = "roost.mesh.worker"


def worker_spec(
    common: dict[str, Any], member: dict[str, Any], bootstrap: bytes, *, secret: bytes, agent: str, output: str
) -> ProcSpec:
    """One worker: what all of its mesh have in common, what is its own, and how it finds its agent."""
    payload = {
        "ref": member["ref"],
        "secret": secret,
        "agent": agent,
        "owner": common["owner"],
        "root": common.get("root"),
        "bootstrap": bootstrap or None,
        "definitions": common.get("definitions", []),
        "setup": common.get("setup", []),
        "policy": common.get("policy", {}),
    }
    inherit = member.get("inherit_env", True)
    return ProcSpec(
        proc_id=member["ref"][0],
        name=member["ref"][1],
        entry=WORKER_ENTRY,
        payload=msgpack.packb(payload),
        env={**(common.get("env") or {}), **(member.get("env") or {})},
        rank_env={**(common.get("changed", {}) if inherit else {}), **(member.get("rank_env") or {})},
        preload=(WORKER_MODULE, *(common.get("preload") or ())),
        python=member.get("python") or common.get("python"),
        command=tuple(member.get("command") or ()) or None,
        arg0=member.get("arg0"),
        inherit_env=inherit,
        cpus=member.get("cpus"),
        cwd=common.get("cwd"),
        sys_path=tuple(common.get("sys_path") or ()),
        output=output,
    )


def zygote_for(preload: list[str], env: dict[str, str | None], sys_path: list[str]) -> ZygoteKey:
    """The zygote of workers that are spawned so."""
    return zygote_key(
        ProcSpec(
            proc_id=0,
            name="",
            entry=WORKER_ENTRY,
            payload=b"",
            output="",
            preload=(WORKER_MODULE, *preload),
            env=env,
            sys_path=tuple(sys_path),
        )
    )
