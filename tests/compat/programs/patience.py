"""Waiting in vain loses nothing: the answer of a call can be waited for again."""

import asyncio

from monarch.actor import Actor, Channel, endpoint, this_host


class Slow(Actor):
    @endpoint
    async def answer(self, seconds):
        await asyncio.sleep(seconds)
        return "answer"


slow = this_host().spawn_procs().spawn("slow", Slow)
future = slow.answer.call_one(1.0)
tries = 0
while True:
    try:
        print(future.get(timeout=0.05), tries > 2)
        break
    except TimeoutError:
        tries += 1
print(future.result(), future.exception())


async def waits():
    late = slow.answer.call_one(0.3)
    try:
        await asyncio.wait_for(asyncio.shield(late.as_asyncio()), 0.01)
    except TimeoutError:
        print("nothing yet")
    print(await late)
    port, receiver = Channel.open()
    first, second = receiver.recv(), receiver.recv()
    port.send("first")
    port.send("second")
    print(sorted([await second, await first]))
    return await asyncio.wait_for(slow.answer.call_one(0).as_asyncio(), 30)


print(asyncio.run(waits()))
