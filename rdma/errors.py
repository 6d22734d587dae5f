"""What can go wrong between a handle and the memory it names.

By whose fault: `ValueError` is the caller's (shapes that do not fit); `StaleBuffer` is the owner's (the
memory was dropped or has moved on); `OwnerDied` and `TransferTimeout` are the world's. Each names the far
end.
"""

from __future__ import annotations


class RDMAError(RuntimeError):
    """A one-sided read or write failed; the destination's content is undefined."""


class StaleBuffer(RDMAError):
    """The handle's memory is no longer the one it was made for: dropped, freed, or of a newer generation."""


class OwnerDied(RDMAError):
    """The process that owns the memory is gone."""


class TransferTimeout(RDMAError, TimeoutError):
    """The deadline passed first. A write may have landed in part."""


class CmaRefused(RDMAError):
    """The kernel refuses process_vm_readv/writev on this process (yama, seccomp, another user)."""
