"""Endpoints of names that other systems might want for themselves."""

from monarch.actor import Actor, endpoint, this_host


class Server(Actor):
    @endpoint
    def name(self):
        return "a server"

    @endpoint
    def statistics(self, kind):
        return {kind: 1}

    @endpoint
    def region(self):
        return "north"

    @endpoint
    def call(self, value):
        return value


server = this_host().spawn_procs().spawn("server", Server)
print(server.name.call_one().get(), server.statistics.call_one("calls").get())
print(server.region.call_one().get(), server.call.call_one(5).get())
for taken in ("stop", "size"):
    try:
        made = type("Bad", (Actor,), {taken: endpoint(lambda self: None)})
        this_host().spawn_procs().spawn("bad", made)
    except ValueError as error:
        print(taken in str(error))
