"""A replay buffer of bounded staleness: who may start a rollout, and what may be trained on.

Admission is by slots, not by queue length: with `batch` groups a step, a generator that holds the
weights `version` may start rollouts while

    accepted + running <= (max_staleness + version + 1) * batch

where `accepted` counts the groups ever taken in (consumed ones too) and `running` those begun. A slot is
free again once the trainer has consumed a batch *and* this generator has pulled the version that came of
it. (The formula is AReaL's, arXiv:2505.24298: floor((N - 1) / B) <= i + eta.) Example with batch 16 and
max_staleness 1: at version 0 there are 32 slots. After step 1 a generator that has pulled version 1 finds
16 more; one that still holds version 0 finds none, so it cannot make rollouts that would be too old when
their turn comes.

Groups leave oldest version first. A straggler can still be too old when it arrives: it is dropped and
counted, its slot freed and its prompt returned for another try. Each ticket is consumed at most once.

No waiting, no threads, no clock: a pure state machine; the actor around it waits and wakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .records import Group
from .task import Item


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts since the start of the run, in groups, but `running` and `waiting`, which are of now."""

    consumed: int
    waiting: int
    running: int
    dropped: int  # too stale when their turn came
    refused: int  # arrived without being expected: delivered twice, or after their generator was given up
    requeued: int  # prompts returned for another try: dropped ones and those of lost generators


class ReplayBuffer:
    """Scored groups between generators and trainer.

    >>> buffer = ReplayBuffer(batch=2, max_staleness=0)
    >>> buffer.room(version=0)                   # on-policy: one batch at a time
    2
    >>> buffer.start("generator-0", items)       # two prompts of a PromptCursor
    >>> [buffer.put(group) for group in groups]  # and what became of them
    [True, True]
    >>> len(buffer.take(version=0))
    2
    >>> buffer.room(version=0), buffer.room(version=1)
    (0, 2)
    """

    def __init__(self, batch: int, max_staleness: int) -> None:
        if batch < 1 or max_staleness < 0:
            raise ValueError(f"need batch >= 1 and max_staleness >= 0, not {batch} and {max_staleness}")
        self.batch, self.max_staleness = batch, max_staleness
        self._running: dict[int, tuple[str, Item]] = {}  # by ticket
        self._waiting: list[Group] = []
        self._returned: list[Item] = []
        self._consumed = self._dropped = self._refused = self._requeued = 0

    def room(self, version: int) -> int:
        """Rollouts that a generator holding the weights `version` may start now."""
        accepted = self._consumed + len(self._waiting)
        limit = (self.max_staleness + version + 1) * self.batch
        return max(0, limit - accepted - len(self._running))

    def start(self, owner: str, items: Sequence[Item]) -> None:
        """Take a slot for each of `items`, which the generator `owner` begins now. Ask `room` before."""
        for item in items:
            if held := self._running.get(item.ticket):
                raise ValueError(f"prompt {item.ticket} is already running on {held[0]}")
            self._running[item.ticket] = (owner, item)

    def put(self, group: Group) -> bool:
        """Accept a finished group; False, and counted, if its ticket is not running (any more)."""
        if self._running.pop(group.item.ticket, None) is None:
            self._refused += 1
            return False
        self._waiting.append(group)
        return True

    def take(self, version: int) -> list[Group] | None:
        """The `batch` groups with the oldest weights for a trainer at `version`; None if there are too few.

        Groups more than `max_staleness` versions old are dropped first and their prompts returned.
        Among equal versions the order is that of arrival.
        """
        oldest = version - self.max_staleness
        stale = [group for group in self._waiting if group.version < oldest]
        self._waiting = [group for group in self._waiting if group.version >= oldest]
        self._dropped += len(stale)
        self._give_back([group.item for group in stale])
        if len(self._waiting) < self.batch:
            return None
        self._waiting.sort(key=lambda group: group.version)  # stable
        batch, self._waiting = self._waiting[: self.batch], self._waiting[self.batch :]
        self._consumed += len(batch)
        return batch

    def release_running(self, owner: str) -> int:
        """`owner` is lost: free the slots of its unfinished rollouts, return their prompts; how many.

        What it delivered before stays. What it might still deliver is refused.
        """
        lost = [item for holder, item in self._running.values() if holder == owner]
        for item in lost:
            del self._running[item.ticket]
        self._give_back(lost)
        return len(lost)

    def returned(self) -> list[Item]:
        """Prompts for another try, handed out once: `cursor.requeue(buffer.returned())`."""
        items, self._returned = self._returned, []
        return items

    def _give_back(self, items: list[Item]) -> None:
        self._returned += items
        self._requeued += len(items)

    def statistics(self) -> Statistics:
        return Statistics(
            self._consumed,
            len(self._waiting),
            len(self._running),
            self._dropped,
            self._refused,
            self._requeued,
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors. Running rollouts are saved as returned prompts: a resumed run has
        new generators, which know nothing of them."""
        running = [item for _, item in self._running.values()]
        return {
            "waiting": [group.state_dict() for group in self._waiting],
            "returned": [asdict(item) for item in [*self._returned, *running]],
            "consumed": self._consumed,
            "dropped": self._dropped,
            "refused": self._refused,
            "requeued": self._requeued + len(running),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; batch and max_staleness stay those of this buffer."""
        self._running = {}
        self._waiting = [Group.from_state_dict(group) for group in state["waiting"]]
        self._returned = [Item(**fields) for fields in state["returned"]]
        self._consumed, self._dropped = state["consumed"], state["dropped"]
        self._refused, self._requeued = state["refused"], state["requeued"]

    def __repr__(self) -> str:
        return (
            f"ReplayBuffer(waiting={len(self._waiting)}, running={len(self._running)},"
            f" consumed={self._consumed}, dropped={self._dropped}, max_staleness={self.max_staleness})"
        )
