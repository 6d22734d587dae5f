"""What the run looks like while it goes: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .records import Evaluation, Event, StepRecord

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 48  # columns of the sparkline


def sparkline(values: list[float], width: int = _WIDTH) -> str:
    """`values` between 0 and 1 as at most `width` bars, each the mean of its share: "▁▃▆█"."""
    count = min(width, len(values))
    bounds = [index * len(values) // count for index in range(count + 1)] if count else [0]
    shares = [values[low:high] for low, high in pairwise(bounds)]
    means = [sum(share) / len(share) for share in shares]
    return "".join(_BARS[round(min(max(mean, 0.0), 1.0) * (len(_BARS) - 1))] for mean in means)


class RunView:
    """Shows steps, evaluations and events; a context manager.

    On a terminal one panel is redrawn four times a second. Elsewhere every tenth step, each evaluation
    and each event is one line, so that a log stays readable.
    """

    def __init__(self, total_steps: int, console: Console | None = None, plain_every: int = 10) -> None:
        self._total, self._every = total_steps, plain_every
        self._console = console or Console()
        self._rewards: list[float] = []
        self._last: StepRecord | None = None
        self._notes: deque[str] = deque(maxlen=6)
        self._status = "starting"
        live = self._console.is_terminal
        self._live = Live(self, console=self._console, refresh_per_second=4) if live else None

    def __enter__(self) -> RunView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def status(self, text: str) -> None:
        """What goes on before the first step: "warming up 40/120, loss 1.62"."""
        self._status = text
        if self._live is None:
            self._line(text)

    def step(self, record: StepRecord) -> None:
        """Show one optimizer step."""
        self._last = record
        self._rewards.append(record.reward)
        if self._live is None and (record.step % self._every == 0 or record.step in (1, self._total)):
            self._line(plain_step(record, self._total))

    def evaluation(self, evaluation: Evaluation) -> None:
        """Show a greedy accuracy on the held-out items."""
        self._note(f"step {evaluation.step}: held-out greedy accuracy {evaluation.accuracy:.1%}")

    def event(self, event: Event) -> None:
        """Show something worth a line of its own."""
        self._note(f"step {event.step}: {event.text}")

    def _note(self, text: str) -> None:
        self._notes.append(text)
        if self._live is None:
            self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __rich__(self) -> RenderableType:
        """The panel as of now."""
        record = self._last
        if record is None:
            return Panel(Text(self._status), title="GRPO", title_align="left", width=80)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", justify="right", width=14)
        table.add_column()
        bar = ProgressBar(total=self._total, completed=record.step, width=_WIDTH)
        table.add_row(f"step {record.step}/{self._total}", bar)
        table.add_row("reward", Text(f"{sparkline(self._rewards)} {self._recent():.3f}", style="bold blue"))
        table.add_row("staleness", f"mean {record.staleness:.2f}, oldest {record.max_staleness} versions")
        table.add_row("throughput", f"{record.tokens_per_s:,.0f} tokens/s, {record.seconds:.0f} s so far")
        idle = f"trainer {record.trainer_idle:.0%}, generators {record.generator_idle:.0%}"
        table.add_row("idle", idle)
        table.add_row("weight pull", f"{record.pull_ms:.1f} ms")
        table.add_row(
            "policy",
            f"entropy {record.entropy:.3f}, clipped {record.clip_fraction:.1%}, KL {record.kl:.4f},"
            f" dropped {record.dropped}",
        )
        notes = Text("\n".join(self._notes), style="yellow")
        return Panel(Group(table, notes), title="GRPO", title_align="left", width=80)

    def _recent(self) -> float:
        last = self._rewards[-20:]
        return sum(last) / len(last)


def plain_step(record: StepRecord, total: int) -> str:
    """One step as one line of a log."""
    return (
        f"step {record.step}/{total} reward {record.reward:.3f}"
        f" staleness {record.staleness:.2f} (oldest {record.max_staleness})"
        f" {record.tokens_per_s:,.0f} tokens/s"
        f" idle: trainer {record.trainer_idle:.0%}, generators {record.generator_idle:.0%}"
        f" pull {record.pull_ms:.1f} ms {record.seconds:.0f} s"
    )
