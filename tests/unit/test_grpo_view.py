"""The live view, its plain lines, and the plot."""

from __future__ import annotations

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import pytest

pytest.importorskip("rich")
pytest.importorskip("torch")

from grpo_parts.plot import plot_run, smooth
from grpo_parts.records import Evaluation, Event, StepRecord
from grpo_parts.view import RunView, sparkline
from rich.console import Console

KILLED = Event(15, "generator 1 was killed (SIGKILL); a fresh one is up at version 15")


def record(step: int) -> StepRecord:
    return StepRecord(step, step * 0.2, step / 25, 0.75, 1, 9_000, 0.12, 0.3, 1.7)


def run(console: Console) -> None:
    with RunView(25, console) as view:
        view.evaluation(Evaluation(0, 0.1))
        for step in range(1, 26):
            view.step(record(step))
            if step == KILLED.step:
                view.event(KILLED)


def test_a_log_gets_every_tenth_step_and_each_event() -> None:
    out = io.StringIO()
    run(Console(file=out, width=60))
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["0:", "1/25", "10/25", "15:", "20/25", "25/25"]
    assert lines[0] == "step 0: held-out greedy accuracy 10.0%"
    assert lines[2] == (
        "step 10/25 reward 0.400 staleness 0.75 (oldest 1) 9,000 tokens/s"
        " idle: trainer 12%, generators 30% pull 1.7 ms 2 s"
    )
    assert KILLED.text in lines[3]
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_one_panel() -> None:
    out = io.StringIO()
    run(Console(file=out, width=90, force_terminal=True, force_interactive=True, color_system=None))
    last = out.getvalue().rsplit("GRPO", 1)[1]
    for part in ("step 25/25", "█", "oldest 1 versions", "9,000 tokens/s", "1.7 ms", KILLED.text[:40]):
        assert part in last


def test_a_sparkline_takes_the_mean_of_each_share() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.5, 1.0]) == " ▄█"
    assert sparkline([0.0, 1.0, 1.0, 1.0], width=2) == "▄█"


def test_smoothing_has_no_pull_of_its_start() -> None:
    assert smooth([1.0, 1.0, 1.0]) == pytest.approx([1.0, 1.0, 1.0])
    assert smooth([]) == []


@pytest.mark.parametrize("count", [0, 25])
def test_the_plot_is_written(tmp_path: Path, count: int) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "reward.png"
    plot_run([record(step) for step in range(1, count + 1)], [Evaluation(0, 0.1)], path, [KILLED])
    assert path.read_bytes().startswith(b"\x89PNG")
