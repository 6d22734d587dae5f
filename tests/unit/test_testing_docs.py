"""The examples of docs/testing.md run, and so does the pytest plugin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from roost import Actor, endpoint, testing, this_host

pytest_plugins = ["roost.testing.pytest"]
pytestmark = pytest.mark.timeout(60)

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"


class Doubler(Actor):
    @endpoint
    def double(self, n: int) -> int:
        return 2 * n


def test_the_fixture_is_a_simulation(roost_sim: testing.Simulation) -> None:
    assert testing.current_simulation() is roost_sim
    doubler = this_host().spawn_procs({"gpus": 2}).spawn("doubler", Doubler)
    assert doubler.double.call(4).get().values() == [8, 8]  # type: ignore[attr-defined]


@pytest.mark.parametrize("roost_sim", [{"seed": 7, "latency": 0.5}], indirect=True)
def test_the_fixture_takes_options(roost_sim: testing.Simulation) -> None:
    assert roost_sim.seed == 7


def test_the_examples_of_the_documentation_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    plugin = [block for block in blocks if "pytest_plugins" in block]
    (tmp_path / "conftest.py").write_text("\n".join(plugin))
    (tmp_path / "test_examples.py").write_text("\n\n".join(block for block in blocks if block not in plugin))
    tests = sum(block.count("def test_") for block in blocks)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{tests} passed" in ran.stdout
