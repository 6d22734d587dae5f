"""What a caller sees when an endpoint raises, a constructor raises, a process dies, or a mesh has been stopped."""

import os

import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, ActorError, endpoint, this_host

monarch.actor.unhandled_fault_hook = lambda failure: None


class Trouble(Actor):
    def __init__(self, broken=False):
        if broken:
            raise ValueError("built wrong")

    @endpoint
    def raises(self):
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("bad value") from error

    @endpoint
    def fine(self):
        return "fine"

    @endpoint
    def dies(self):
        os._exit(7)


procs = this_host().spawn_procs(per_host={"gpus": 2})
trouble = procs.spawn("trouble", Trouble)
try:
    trouble.slice(gpus=0).raises.call_one().get()
except ActorError as error:
    print(repr(error.exception), error.message)
    print("bad value" in str(error), "KeyError" in str(error), "Traceback of where" in error.exception_formatted)
print(trouble.slice(gpus=0).fine.call_one().get())
futures = list(trouble.raises.stream())
caught = 0
for future in futures:
    try:
        future.get()
    except ActorError:
        caught += 1
print(caught)

wrong = procs.spawn("wrong", Trouble, broken=True)
try:
    wrong.fine.call().get()
except SupervisionError as error:
    print("built wrong" in str(error), isinstance(error, RuntimeError))

try:
    trouble.slice(gpus=1).dies.call_one().get(timeout=60)
except SupervisionError as error:
    print("dead", "7" in str(error))
print(trouble.slice(gpus=0).fine.call_one().get())
try:
    trouble.fine.call().get(timeout=60)
except SupervisionError:
    print("the whole mesh fails")

procs.stop().get()
try:
    procs.spawn("late", Trouble)
except RuntimeError as error:
    print("stopped" in str(error))
