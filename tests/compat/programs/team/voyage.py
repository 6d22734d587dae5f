"""Classes of a module beside the script, of the script itself, and the one made from the other."""

from dataclasses import dataclass

import monarch
from crew import Lost, Sailor
from monarch.actor import ActorError, endpoint, this_host


@dataclass
class Log:
    day: int
    text: str


class Captain(Sailor):
    @endpoint
    def write(self, log):
        return Log(log.day + 1, f"{log.text} of the {self.ship} by {monarch.actor.current_rank().rank}")

    @endpoint
    def sink(self):
        raise Lost("lost at sea")


procs = this_host().spawn_procs(per_host={"gpus": 2})
print(list(procs.spawn("sailors", Sailor, "Swan").report.call().get().values()))
captains = procs.spawn("captains", Captain, "Swan")
print(captains.slice(gpus=1).write.call_one(Log(1, "log")).get())
try:
    captains.slice(gpus=0).sink.call_one().get()
except ActorError as error:
    print("lost at sea" in str(error), type(error.exception) is Lost, error.exception.args)
