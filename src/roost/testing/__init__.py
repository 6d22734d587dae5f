"""Tests of actors in one process: deterministic, in virtual time, with deaths and delays where you want them.

    from roost import testing, this_host

    def test_a_lost_rank_is_replaced():
        with testing.simulate() as sim:
            trainers = this_host().spawn_procs({"gpus": 4}).spawn("trainer", Trainer)
            sim.kill(trainers, 2, when="trainer.step", call=3, where="during")
            assert train(trainers, steps=5) == 5

Nodes, delivery, supervision, pickling and actors' threads are Roost's own. What stands in for the rest: processes and
hosts are objects, links are queues in memory, time is virtual, and of all threads one runs at a time.
"""

from __future__ import annotations

from .clock import Clock
from .errors import Deadlock, Explored, SimulationError, UnfinishedWarning
from .helpers import assert_no_failures, explore, local
from .simulation import Simulation, current_simulation, simulate
from .watch import Call

__all__ = [
    "Call",
    "Clock",
    "Deadlock",
    "Explored",
    "Simulation",
    "SimulationError",
    "UnfinishedWarning",
    "assert_no_failures",
    "current_simulation",
    "explore",
    "local",
    "simulate",
]
