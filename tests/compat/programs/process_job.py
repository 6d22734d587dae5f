"""Hosts from a job, a mesh of them for each role, and actors of one role that call those of the other."""

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import ProcessJob


class Generator(Actor):
    @endpoint
    def sample(self, seed):
        return seed * 10 + current_rank().rank


class Trainer(Actor):
    def __init__(self, generators):
        self.generators = generators

    @endpoint
    def step(self, number):
        return sum(self.generators.sample.call(number).get().values())


job = ProcessJob({"trainers": 1, "generators": 2})
state = job.state(cached_path=None)
print(state.generators.extent, state.trainers.sizes)
generators = state.generators.spawn_procs(per_host={"procs": 2}).spawn("generators", Generator)
print(generators.extent)
trainers = state.trainers.spawn_procs().spawn("trainers", Trainer, generators)
print([trainers.step.call_one(number).get() for number in (1, 2)])
print(list(generators.slice(hosts=1).sample.call(7).get().values()))
try:
    print(state.critics)
except AttributeError as error:
    print("critics" in str(error), "generators" in str(error))
job.kill()
