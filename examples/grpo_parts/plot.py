"""reward.png: how reward, held-out accuracy and staleness went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .records import Evaluation, Event, StepRecord

_INK, _SOFT, _BLUE, _GREEN, _RED = "#1f2933", "#9aa5b1", "#2563eb", "#0f9d58", "#d64545"


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Exponential mean without the pull of its start: smooth([1, 1, 1]) == [1, 1, 1].

    The debiasing is Adam's, arXiv:1412.6980, section 3.
    """
    total, scale, means = 0.0, 0.0, []
    for value in values:
        total = weight * total + (1 - weight) * value
        scale = weight * scale + (1 - weight)
        means.append(total / scale)
    return means


def plot_run(
    steps: Sequence[StepRecord],
    evaluations: Sequence[Evaluation],
    path: Path | str,
    events: Sequence[Event] = (),
    title: str = "GRPO",
) -> None:
    """Write the PNG `path`: reward (raw and smoothed) and accuracy above, staleness below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(
        2, 1, sharex=True, figsize=(9, 5.6), dpi=150, height_ratios=(3, 1), layout="constrained"
    )
    x = [record.step for record in steps]
    rewards = [record.reward for record in steps]
    top.plot(x, rewards, color=_BLUE, alpha=0.25, linewidth=0.8, label="reward of each step")
    top.plot(x, smooth(rewards), color=_BLUE, linewidth=2, label="smoothed")
    top.plot(
        [e.step for e in evaluations],
        [e.accuracy for e in evaluations],
        "D",
        color=_GREEN,
        markersize=7,
        markeredgecolor="white",
        clip_on=False,
        zorder=5,
        label="greedy accuracy, held out",
    )
    top.set(ylim=(0, 1), ylabel="mean reward / accuracy")
    top.set_title(title, loc="left", color=_INK, fontsize=12, fontweight="bold")
    bottom.fill_between(x, [r.staleness for r in steps], color=_SOFT, alpha=0.5, linewidth=0, label="mean")
    bottom.step(x, [r.max_staleness for r in steps], color=_INK, linewidth=0.8, where="mid", label="oldest")
    bottom.set(ylabel="staleness\n(versions)", xlabel="optimizer step")
    bottom.set_ylim(0, max([r.max_staleness for r in steps], default=0) + 0.9)
    bottom.yaxis.get_major_locator().set_params(integer=True)
    for event in events:
        for axis in (top, bottom):
            axis.axvline(event.step, color=_RED, linewidth=1, linestyle=(0, (3, 3)))
        top.annotate(_wrap(event.text), (event.step, 0.03), (5, 0), textcoords="offset points", color=_RED, fontsize=8)
    for axis in (top, bottom):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color=_SOFT, alpha=0.3, linewidth=0.6)
        axis.tick_params(colors=_INK, labelsize=9)
    top.legend(loc="lower right", frameon=False, fontsize=9)
    bottom.legend(loc="upper right", frameon=False, fontsize=8, ncols=2)
    figure.savefig(path)
    pyplot.close(figure)


def _wrap(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 32)
