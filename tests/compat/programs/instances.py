"""Actors that end themselves, and who hears of it."""

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, MeshFailure, context, endpoint, this_host


class Mortal(Actor):
    @endpoint
    def leave(self, how):
        instance = context().actor_instance
        {"abort": instance.abort, "stop": instance.stop, "kill": instance.kill}[how](f"{how} it is")

    @endpoint
    def number(self):
        return 1


class Witness(Actor):
    def __init__(self):
        self.told = []

    @endpoint
    def watch(self, how):
        mortal = this_host().spawn_procs().spawn("mortal", Mortal)
        before = mortal.number.call_one().get()
        mortal.leave.broadcast(how)
        try:
            while True:
                mortal.number.call_one().get(timeout=60)
        except SupervisionError as error:
            return before, f"{how} it is" in str(error)

    @endpoint
    def heard(self):
        return sorted(self.told)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(next(how for how in ("abort", "kill", "stop") if f"{how} it is" in str(failure)))
        return True


witness = this_host().spawn_procs().spawn("witness", Witness)
for how in ("abort", "kill", "stop"):
    print(how, witness.watch.call_one(how).get())
while len(witness.heard.call_one().get()) < 2:
    pass
print(witness.heard.call_one().get())
