"""Versioned weights: one process publishes, others pull when they like, and nobody waits for anybody.

A `WeightSource` holds two flat copies of a state dict. `publish(version)` fills the older one and marks it complete;
`pull(into)` on any process reads the newest complete one, one-sided, so the publisher's actor may be in the middle of a
step. Marks around each copy tell a reader that it was overwritten meanwhile: it then reads again. A pull never gives
half a version.

    slot        begin   data   end          publish: begin = v, copy, end = v
    0           7       ...    7            pull:    end = v?, read data, begin = v still?
    1           8       ...    7    <- 8 is being written; a pull takes 7
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .buffer import RDMABuffer
from .errors import RDMAError

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = 2
NEVER = -1
PULL_TIMEOUT = 60.0


class WeightSource:
    """A state dict's versions in one process, readable by all. Send it in a message to whoever is to pull.

    Publish after each optimizer step; pull in any process, any time after the first publication.

    >>> source = WeightSource(model.state_dict())                     # doctest: +SKIP
    >>> source.publish(model.state_dict(), version=1)                 # doctest: +SKIP
    >>> source.pull(copy.state_dict())                                # doctest: +SKIP
    1
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        import torch

        self._spec = [(name, str(t.dtype), tuple(t.shape)) for name, t in state.items()]
        sizes: dict[str, int] = {}
        for tensor in state.values():
            sizes[str(tensor.dtype)] = sizes.get(str(tensor.dtype), 0) + tensor.numel()
        types = {str(t.dtype): t.dtype for t in state.values()}
        self._flat: list[dict[str, Any]] | None = [
            {kind: torch.empty(size, dtype=types[kind]) for kind, size in sizes.items()} for _ in range(SLOTS)
        ]
        self._marks_tensor: Any = torch.full((SLOTS, 2), NEVER, dtype=torch.int64)
        self._slots = [{kind: RDMABuffer(flat) for kind, flat in slot.items()} for slot in self._flat]
        self._marks = RDMABuffer(self._marks_tensor)
        self._scratch: Any = None
        self._next = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_spec": self._spec, "_slots": self._slots, "_marks": self._marks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._flat = None
        self._marks_tensor = self._scratch = None
        self._next = 0

    def __repr__(self) -> str:
        where = "published here" if self._flat is not None else "of another process"
        return f"<WeightSource of {len(self._spec)} tensors, {self.nbytes} bytes, {where}>"

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""
        return sum(buffer.size() for buffer in self._slots[0].values())

    def publish(self, state: Mapping[str, Tensor], version: int) -> None:
        """Copy a state dict of the same names, shapes and types in as `version`; then, and only then, it can be pulled.

        Versions rise. Runs where the source was made; tensors of other devices are copied to this host.
        """
        if self._flat is None:
            raise RDMAError("only the process that made a WeightSource publishes to it")
        slot = self._next
        self._next = (slot + 1) % SLOTS
        self._check(state)
        marks, flat = self._marks_tensor, self._flat[slot]
        marks[slot, 0] = version
        at = dict.fromkeys(flat, 0)
        for name, kind, _ in self._spec:
            tensor = state[name].detach()
            size = tensor.numel()
            flat[kind][at[kind] : at[kind] + size].copy_(tensor.reshape(-1))
            at[kind] += size
        marks[slot, 1] = version

    def pull(
        self, into: Mapping[str, Tensor], *, newer_than: int | None = None, timeout: float = PULL_TIMEOUT
    ) -> int | None:
        """Read the newest complete version into the tensors of a state dict; gives its number.

        None, and nothing is touched, when it is no newer than `newer_than`. Raises RDMAError when nothing has been
        published, OwnerDied when the publisher is gone, TransferTimeout after `timeout` seconds.
        """
        import torch

        self._check(into)
        if self._scratch is None:
            self._scratch = (
                {
                    kind: torch.empty(b.shape, dtype=getattr(torch, kind.removeprefix("torch.")))
                    for kind, b in self._slots[0].items()
                },
                torch.empty((SLOTS, 2), dtype=torch.int64),
            )
        data, marks = self._scratch
        until = time.monotonic() + timeout
        while True:
            left = max(until - time.monotonic(), 0.001)
            self._marks.read_into(marks, timeout=left).get(left)
            slot = int(marks[:, 1].argmax())
            version = int(marks[slot, 1])
            if version == NEVER:
                raise RDMAError("nothing has been published yet")
            if newer_than is not None and version <= newer_than:
                return None
            for kind, buffer in self._slots[slot].items():
                buffer.read_into(data[kind], timeout=left).get(left)
            self._marks.read_into(marks, timeout=left).get(left)
            if int(marks[slot, 0]) == version and int(marks[slot, 1]) == version:
                break
        at = dict.fromkeys(data, 0)
        with torch.no_grad():
            for name, kind, shape in self._spec:
                size = into[name].numel()
                into[name].copy_(data[kind][at[kind] : at[kind] + size].view(shape))
                at[kind] += size
        return version

    def _check(self, state: Mapping[str, Tensor]) -> None:
        given = [(name, str(t.dtype), tuple(t.shape)) for name, t in state.items()]
        if given != self._spec:
            wrong = next(
                (pair for pair in zip(given, self._spec, strict=False) if pair[0] != pair[1]),
                (len(given), len(self._spec)),
            )
            raise ValueError(f"the state dict differs from the published one: {wrong[0]} where {wrong[1]} is published")
