"""What a process says of itself when it links to another."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version

from .. import __version__
from ..actors.link.handshake import Identity


def torch_version() -> str | None:
    """The installed torch's version, without importing it; None where there is none."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return str(torch.__version__)
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def identity_of(proc_id: int, node_id: str, name: str, role: str, address: str) -> Identity:
    """The identity of this process."""
    return Identity(
        proc_id=proc_id,
        node_id=node_id,
        name=name,
        role=role,
        pid=os.getpid(),
        address=address,
        python=sys.version_info[:2],
        roost=__version__,
        torch=torch_version(),
    )
