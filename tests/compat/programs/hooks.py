"""What an actor is told at its end, what runs in a process before it, and who it is."""

import os

from monarch.actor import Actor, Channel, context, current_actor_name, endpoint, this_host


def prepare():
    os.environ["PREPARED"] = "yes"


class Leaver(Actor):
    def __init__(self, port):
        self.port = port

    @endpoint
    def who(self):
        instance = context().actor_instance
        return instance.name, dict(instance.rank), dict(context().message_rank), os.environ["PREPARED"]

    @endpoint
    def names(self):
        return (
            "leavers" in current_actor_name(),
            context().actor_instance.proc.size(),
            self.logger.name.endswith("Leaver"),
        )

    def __cleanup__(self, error):
        self.port.send(("cleaned up", error))


port, receiver = Channel.open()
procs = this_host().spawn_procs(per_host={"gpus": 2}, bootstrap=prepare)
leavers = procs.spawn("leavers", Leaver, port)
print(leavers.slice(gpus=1).who.call_one().get())
print(leavers.slice(gpus=1).names.call_one().get())
leavers.stop("enough").get()
print([receiver.recv().get(timeout=30) for _ in range(2)])
procs.stop("enough").get()
