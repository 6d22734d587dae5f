"""Links between hosts break: nothing is lost, nothing comes twice, nothing overtakes."""

from __future__ import annotations

import threading
from typing import Any

from roost import Actor, ProcessJob, endpoint
from roost.actors.node import current_node

PATIENCE = 60


class Recorder(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    def note(self, number: int) -> int:
        self.seen.append(number)
        return number

    @endpoint
    def all(self) -> list[int]:
        return self.seen


def test_calls_over_a_link_that_is_cut_again_and_again_run_once_and_in_order() -> None:
    with ProcessJob({"h": 2}) as job:
        recorders = job.state().h.spawn_procs({"gpus": 1}).spawn("recorder", Recorder)
        recorders.note.call(-1).get(PATIENCE)
        node = current_node()
        assert node is not None
        over = threading.Event()
        cuts = 0

        def cut() -> None:
            nonlocal cuts
            while not over.wait(0.03):
                for link in list(node.routing.links.values()):
                    if link.peer.name.startswith("agent-"):
                        link.close("cut by the test")
                        cuts += 1

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            one: Any = recorders.slice(hosts=1, gpus=0)
            for base in range(0, 2000, 200):
                futures = [one.note.call_one(number) for number in range(base, base + 200)]
                assert [future.get(PATIENCE) for future in futures] == list(range(base, base + 200))
        finally:
            over.set()
            cutter.join()
        assert cuts > 5, "the link must really have been cut"
        assert one.all.call_one().get(PATIENCE) == [-1, *range(2000)]
