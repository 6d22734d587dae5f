"""Endpoints that wait while others of the same actor run."""

import asyncio

from monarch.actor import Actor, concurrent_endpoint, endpoint, this_host


class Gate(Actor):
    def __init__(self):
        self.opened = asyncio.Event()
        self.waiting = 0

    @concurrent_endpoint
    async def passing(self, who):
        self.waiting += 1
        await self.opened.wait()
        return f"{who} passed"

    @concurrent_endpoint
    async def crowd(self, at_least):
        while self.waiting < at_least:
            await asyncio.sleep(0.001)
        return self.waiting

    @endpoint
    async def open(self):
        self.opened.set()


gate = this_host().spawn_procs().spawn("gate", Gate)
waiting = [gate.passing.call_one(who) for who in ("Ann", "Bob")]
print(gate.crowd.call_one(2).get(timeout=30))
gate.open.call_one().get(timeout=30)
print([future.get(timeout=30) for future in waiting])
