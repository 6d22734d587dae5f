"""What is kept of a run: its history, a checkpoint to go on from, a summary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .buffer import ReplayBuffer
from .records import Evaluation, Event, StepRecord
from .task import PromptCursor

NAME = "checkpoint.pt"
METRICS = "metrics.jsonl"


@dataclass(slots=True)
class History:
    """All that has been recorded of a run, over its resumptions."""

    records: list[StepRecord] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """When the last step was done, since the start of the first run."""
        return self.records[-1].seconds if self.records else 0.0

    def shown(self) -> tuple[list[StepRecord], list[Evaluation]]:
        """What a plot shows."""
        return self.records, self.evaluations


def save_checkpoint(
    out: Path, trainer: dict[str, Any], version: int, buffer: ReplayBuffer, cursor: PromptCursor, history: History
) -> None:
    """Write `out`/checkpoint.pt; a crash in the middle leaves the one before."""
    state = {
        "trainer": trainer,
        "version": version,
        "buffer": buffer.state_dict(),
        "cursor": cursor.state_dict(),
        "records": [asdict(record) for record in history.records],
        "evaluations": [asdict(evaluation) for evaluation in history.evaluations],
        "events": [asdict(event) for event in history.events],
    }
    temporary = out / (NAME + ".new")
    torch.save(state, temporary)
    temporary.replace(out / NAME)


def load_checkpoint(
    out: Path, buffer: ReplayBuffer, cursor: PromptCursor, history: History
) -> tuple[dict[str, Any], int]:
    """Restore buffer, cursor and history from `out`; gives the trainers' state and the version.

    Lines of the log that are younger than the checkpoint are dropped: their steps are done again.
    """
    state = torch.load(out / NAME, weights_only=True)
    buffer.load_state_dict(state["buffer"])
    cursor.load_state_dict(state["cursor"])
    cursor.requeue(buffer.returned())
    history.records = [StepRecord(**record) for record in state["records"]]
    history.evaluations = [Evaluation(**evaluation) for evaluation in state["evaluations"]]
    history.events = [Event(**event) for event in state["events"]]
    lines = [json.dumps(asdict(record)) + "\n" for record in history.records]
    (out / METRICS).write_text("".join(lines))
    return state["trainer"], state["version"]


def summarize(history: History, steps: int, seconds: float, buffer: ReplayBuffer) -> dict[str, Any]:
    """What came of a run, in a few numbers."""
    records, evaluations = history.records, history.evaluations
    first, last = records[:10], records[-20:]
    statistics = buffer.statistics()
    return {
        "steps": steps,
        "seconds": round(seconds, 1),
        "reward_first": round(sum(record.reward for record in first) / len(first), 3),
        "reward_last": round(sum(record.reward for record in last) / len(last), 3),
        "greedy_before": evaluations[0].accuracy,
        "greedy_after": evaluations[-1].accuracy,
        "staleness": round(sum(record.staleness for record in records) / len(records), 2),
        "pull_ms": round(sorted(record.pull_ms for record in records)[len(records) // 2], 2),
        "consumed": statistics.consumed,
        "dropped": statistics.dropped,
        "requeued": statistics.requeued,
    }
