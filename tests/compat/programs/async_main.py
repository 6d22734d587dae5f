"""A program that is itself a coroutine."""

import asyncio

from monarch.actor import Actor, Channel, context, endpoint, this_host


class Sleeper(Actor):
    @endpoint
    async def sleep(self, seconds, answer):
        await asyncio.sleep(seconds)
        return answer


async def main():
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    await procs.initialized
    sleepers = procs.spawn("sleepers", Sleeper)
    await sleepers.initialized
    print(list((await sleepers.sleep.call(0, "all")).values()))
    one = sleepers.slice(gpus=0)
    print(await asyncio.gather(one.sleep.call_one(0, "a").as_asyncio(), one.sleep.call_one(0, "b").as_asyncio()))
    slow = one.sleep.call_one(0.5, "late")
    try:
        slow.get(timeout=0.01)
    except TimeoutError:
        print("not yet")
    print(await slow, await slow)
    print(sorted([await future for future in sleepers.sleep.stream(0, "s")]))
    port, receiver = Channel.open()
    port.send("through a port")
    print(await receiver.recv())
    print(context().actor_instance.rank)
    await procs.stop()


asyncio.run(main())
