"""Who waits for a process hears of its end, wherever it is and whether or not it is known where: streams whose caller
dies end, and the actor takes the next message.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from guests import LOOP, Drinker, Fountain, Wire, settle

from roost.mesh import attach_to_workers, find, shutdown

WAIT = 15.0
SOON = 6.0  # seconds; far less than the 30 s after which a silent peer is given up
WAYS = pytest.mark.parametrize("way", ["numbers", "async_numbers"])

pytestmark = pytest.mark.usefixtures("reported")


@WAYS
@pytest.mark.parametrize("apart", [False, True])
def test_the_death_of_a_caller_that_is_known_by_its_number_alone_ends_its_stream(
    site: Any, way: str, apart: bool
) -> None:
    if apart and site.agents == 1:
        pytest.skip("there is one host")
    here = site.hosts.slice(hosts=0).spawn_procs() if apart else site.spawn_procs(1)
    fountain = here.spawn("fountain", Fountain)
    fountain.pid.call_one().get(timeout=WAIT)
    drinker = site.spawn_procs(1).spawn("drinker", Drinker)
    pid = drinker.open.call_one(fountain, way).get(timeout=WAIT)
    settle(fountain, WAIT)
    os.kill(pid, signal.SIGKILL)
    assert fountain.pid.call_one().get(timeout=SOON) > 0
    if apart:
        here.stop().get(timeout=WAIT)


# --- detached actors, whose callers are programs

DETACHED = """
import os, sys
from guests import Fountain
from roost.mesh import attach_to_workers
hosts = attach_to_workers(sys.argv[1:], timeout=20)
procs = hosts.slice(hosts=0).spawn_procs(lifetime="job", name="spring")
procs.spawn("fountain", Fountain).initialized.get(timeout=20)
"""

READS = """
import os, sys, time
from roost.mesh import attach_to_workers, find, this_host
from guests import Drinker
way, who, *addresses = sys.argv[1:]
hosts = attach_to_workers(addresses, timeout=20)
fountain = find(hosts, "spring/fountain").get(timeout=20)
if who == "program":
    stream = getattr(fountain, way).options(window=3).stream()
    next(stream)
else:
    place = this_host() if who == "worker" else hosts.slice(hosts=1)
    drinker = place.spawn_procs().spawn("drinker", Drinker)
    drinker.open.call_one(fountain, way).get(timeout=20)
print("reads")
sys.stdin.readline()
"""


@pytest.fixture
def loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_script: Any, wait_until_gone: Any
) -> Iterator[Callable[..., list[Any]]]:
    """`loops(count, env={}, address=..., wire=None)`: worker loops to which the wire leads, the first with a detached
    actor."""
    monkeypatch.setenv("ROOST_SECRET_FILE", str(tmp_path / "secret"))
    started: list[Any] = []

    def start(
        count: int, env: dict[str, str] | None = None, address: str = "tcp://127.0.0.1:0", wire: Wire | None = None
    ) -> list[Any]:
        for _ in range(count):
            script = start_script(LOOP, address, env=env)
            script.address = script.line()
            (script.agent,) = psutil.Process(script.pid).children()
            connections = script.agent.net_connections()
            (script.bound,) = (c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN and c.laddr)
            if wire is not None:
                wire.lead_to(script.bound)
            started.append(script)
        program = start_script(DETACHED, *(each.address for each in started))
        assert program.wait() == 0, program.err
        return started

    yield start
    shutdown()
    for script in started:
        if script.process.poll() is None:
            script.signal(signal.SIGTERM)
        script.process.wait(WAIT)
    wait_until_gone(script.agent.pid for script in started)


@WAYS
@pytest.mark.parametrize("who", ["program", "worker", "remote worker"])
def test_the_death_of_a_program_ends_what_it_and_its_workers_read_of_a_detached_actor(
    loops: Callable[..., list[Any]], start_script: Any, way: str, who: str
) -> None:
    addresses = [each.address for each in loops(2)]
    program = start_script(READS, way, who, *addresses)
    assert program.line() == "reads"
    fountain = find(attach_to_workers(addresses, timeout=WAIT), "spring/fountain").get(timeout=WAIT)
    settle(fountain, WAIT)
    program.signal(signal.SIGKILL)
    assert fountain.pid.call_one().get(timeout=SOON) > 0


@WAYS
@pytest.mark.parametrize("who", ["program", "worker"])
def test_a_program_that_is_cut_off_holds_no_actor_for_longer_than_the_link_timeout(
    loops: Callable[..., list[Any]], start_script: Any, way: str, who: str
) -> None:
    brief = {"ROOST_LINK_TIMEOUT": "2"}
    wire = Wire()
    (loop,) = loops(1, brief, f"tcp://127.0.0.1:{wire.port}@tcp://127.0.0.1:0", wire)
    program = start_script(READS, way, who, loop.address, env={"ROOST_LINK_TIMEOUT": "60"})
    assert program.line() == "reads"
    fountain = find(attach_to_workers([f"tcp://127.0.0.1:{loop.bound}"], timeout=WAIT), "spring/fountain")
    settle(fountain.get(timeout=WAIT), WAIT)
    wire.cut(for_good=True)
    assert fountain.get(timeout=WAIT).pid.call_one().get(timeout=2 + SOON) > 0
    program.kill()
    wire.close()
