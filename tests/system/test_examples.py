"""The examples, run as a stranger runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the examples train a model")
pytest.importorskip("reasoning_gym", reason="the task of the GRPO example; install the extra `rl`")

ROOT = Path(__file__).resolve().parents[2]


def run_grpo(out: Path, *arguments: str, timeout: float = 110) -> str:
    """Run the demo in a process of its own; gives what it printed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "grpo.py"), "--out", str(out), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=out.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rewards(out: Path) -> list[float]:
    """The mean sampled reward of each step."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record["reward"] for record in records]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.timeout(280)
def test_grpo_learns_survives_a_killed_generator_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = run_grpo(out, "--steps", "110", "--kill-generator-at", "40", timeout=200)
    curve = rewards(out)
    assert len(curve) == 110
    assert mean(curve[-20:]) > mean(curve[:20]) + 0.08, "the reward must rise"
    assert "was lost (SIGKILL); a fresh one is up at version" in said
    assert said.count("was lost") == 1
    assert "held-out greedy accuracy" in said
    for name in ("reward.png", "checkpoint.pt", "summary.json"):
        assert (out / name).stat().st_size > 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["consumed"] == 110 * 32, "each sample is consumed exactly once"
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert max(record["max_staleness"] for record in metrics) <= 1

    said = run_grpo(out, "--steps", "120", "--resume", timeout=80)
    assert "resumed at step 110" in said
    resumed = rewards(out)
    assert len(resumed) == 120 and resumed[:110] == curve
    assert json.loads((out / "summary.json").read_text())["consumed"] == 120 * 32


def test_grpo_refuses_to_resume_from_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "grpo.py"), "--out", str(tmp_path), "--resume"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "there is no checkpoint.pt in" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_rises_from_under_04_to_over_07_within_five_minutes(seed: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_grpo(out, "--seed", str(seed), timeout=590)
    curve = rewards(out)
    summary = json.loads((out / "summary.json").read_text())
    assert mean(curve[:10]) < 0.4
    assert mean(curve[-20:]) > 0.7
    assert summary["seconds"] < 300


@pytest.mark.gpu
def test_grpo_runs_on_one_gpu(tmp_path: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
    out = tmp_path / "run"
    run_grpo(out, "--steps", "20", "--device", "cuda")
    assert len(rewards(out)) == 20
