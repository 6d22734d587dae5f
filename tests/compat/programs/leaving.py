"""An endpoint that calls sys.exit ends its actor."""

import sys

import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, endpoint, this_host

monarch.actor.unhandled_fault_hook = lambda failure: None


class Leaver(Actor):
    @endpoint
    def leave(self) -> None:
        sys.exit(3)

    @endpoint
    def here(self) -> str:
        return "here"


if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": 1})
    leaver = procs.spawn("leaver", Leaver)
    print(leaver.here.call_one().get())
    for call in (leaver.leave, leaver.here):
        try:
            call.call_one().get(timeout=30)
        except SupervisionError:
            print("it has ended")
