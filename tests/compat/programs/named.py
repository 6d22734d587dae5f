"""One actor of a name in the whole program, whoever asks for it first."""

from monarch.actor import Actor, current_rank, endpoint, get_or_spawn_controller, this_host


class Registry(Actor):
    def __init__(self, title):
        self.title = title
        self.names = set()

    @endpoint
    def enter(self, name):
        self.names.add(name)

    @endpoint
    def listing(self):
        return self.title, sorted(self.names)


class Member(Actor):
    @endpoint
    async def join(self):
        registry = await get_or_spawn_controller("registry", Registry, f"made by {current_rank().rank}")
        await registry.enter.call_one(f"member {current_rank().rank}")


registry = get_or_spawn_controller("registry", Registry, "made first").get()
this_host().spawn_procs(per_host={"gpus": 2}).spawn("members", Member).join.call().get()
registry.enter.call_one("main").get()
print(registry.listing.call_one().get())
print(get_or_spawn_controller("registry", Registry, "ignored").get().listing.call_one().get()[0])
