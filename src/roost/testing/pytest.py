"""The pytest plugin: with `pytest_plugins = ["roost.testing.pytest"]` in conftest.py there is a fixture `roost_sim`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .simulation import Simulation, simulate


@pytest.fixture
def roost_sim(request: Any) -> Iterator[Simulation]:
    """A simulation around the test; `parametrize("roost_sim", [{"seed": 7}], indirect=True)` gives it options."""
    with simulate(**getattr(request, "param", {})) as sim:
        yield sim
