"""An actor that hears of the death of what it spawned, and spawns anew."""

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, MeshFailure, endpoint, this_host


class Child(Actor):
    def __init__(self, life):
        self.life = life

    @endpoint
    def number(self):
        return self.life

    @endpoint
    def fall(self):
        raise RuntimeError("fell over")


class Keeper(Actor):
    def __init__(self):
        self.failures = []
        self.life = 0
        self.child = None

    @endpoint
    def start(self):
        self.life += 1
        self.child = this_host().spawn_procs().spawn("child", Child, self.life)
        return self.child.number.call_one().get()

    @endpoint
    def hurt(self):
        self.child.fall.broadcast()

    @endpoint
    def hurt_and_ask(self):
        self.child.fall.broadcast()
        try:
            return self.child.number.call_one().get(timeout=60)
        except SupervisionError as error:
            return "fell over" in str(error)

    @endpoint
    def told(self):
        return list(self.failures)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(
            ("child" in failure.mesh_name, "fell over" in failure.report(), "fell over" in str(failure))
        )
        return True


keeper = this_host().spawn_procs().spawn("keeper", Keeper)
print(keeper.start.call_one().get())
keeper.hurt.call_one().get()
while not keeper.told.call_one().get():
    pass
print(keeper.told.call_one().get())
print(keeper.start.call_one().get())
print(keeper.hurt_and_ask.call_one().get())
