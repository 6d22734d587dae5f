"""The ways of calling: all, one, any, as they come, and without an answer."""

from monarch.actor import Actor, endpoint, this_host


class Counter(Actor):
    def __init__(self, start):
        self.value = start

    @endpoint
    def add(self, amount=1):
        self.value += amount
        return self.value

    @endpoint
    def read(self):
        return self.value


procs = this_host().spawn_procs(per_host={"gpus": 3})
counters = procs.spawn("counters", Counter, 10)
print(list(counters.add.call(5).get().values()))
counters.add.broadcast(amount=2)
print(list(counters.read.call().get().values()))
second = counters.slice(gpus=1)
print(second.add.call_one().get(), second.read.call_one().get())
print(counters.slice(gpus=slice(1, 3)).read.call().get().extent)
print(sorted(future.get() for future in counters.read.stream()))
print(counters.add.choose(100).get() in (117, 118))
print(sum(value for _, value in counters.read.call().get()))
for wrong in (lambda: counters.read.call_one(), lambda: counters.add.call(1, 2, 3)):
    try:
        wrong()
    except (ValueError, TypeError) as error:
        print(type(error).__name__)
procs.stop().get()
