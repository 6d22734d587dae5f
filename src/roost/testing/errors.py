"""What a simulation can tell a test, besides what production raises."""

from __future__ import annotations


class SimulationError(Exception):
    """Root of what the simulation itself raises."""


class Deadlock(SimulationError, AssertionError):
    """The test waits, nothing can run, and no timer is set; the text says who waits for whom."""


class Explored(SimulationError, AssertionError):
    """A test failed under one interleaving; `seed` repeats it, the failure is the cause."""

    def __init__(self, text: str, seed: int) -> None:
        super().__init__(text, seed)
        self.seed = seed

    def __str__(self) -> str:
        return str(self.args[0])


class UnfinishedWarning(UserWarning):
    """Calls of the test had no answer when the simulation ended."""
