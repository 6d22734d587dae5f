"""What a process says of itself when it links to another."""

from __future__ import annotations

import os
import sys

from .. import __version__
from ..actors.link.handshake import Identity


def torch_version() -> str | None:
    """The version of torch in this process; None where it is not imported (asking the installation costs 20 ms)."""
    torch = sys.modules.get("torch")
    return str(torch.__version__) if torch is not None else None


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
