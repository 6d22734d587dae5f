"""Programs in the manner of Monarch's documentation run unchanged, and print what they print there.

The `.out` beside each program is what it prints under Monarch 0.7.0.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
NEEDS_TORCH = ("parameter_server", "spmd", "spmd_main")


@pytest.mark.parametrize("expected", sorted(PROGRAMS.rglob("*.out")), ids=lambda path: path.stem)
def test_a_program_for_monarch_runs_unchanged(run: Callable[..., Any], expected: Path) -> None:
    if expected.stem in NEEDS_TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    ended = run(expected.with_suffix(".py"))
    assert ended.out == expected.read_text()
    assert "Traceback" not in ended.err and "Roost:" not in ended.err, ended.err


def test_every_program_has_what_it_is_to_print() -> None:
    programs = {path.with_suffix("") for path in PROGRAMS.rglob("*.py") if path.name != "crew.py"}
    assert programs == {path.with_suffix("") for path in PROGRAMS.rglob("*.out")}
