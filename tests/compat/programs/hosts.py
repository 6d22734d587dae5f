"""Hosts and processes: their interpreter, their environment, and the ways they end."""

import asyncio
import os
import sys

from monarch.actor import Actor, context, default_bootstrap_cmd, endpoint, this_host, this_proc


class Look(Actor):
    @endpoint
    def variable(self, name):
        return os.environ.get(name)

    @endpoint
    def program(self):
        return os.path.samefile(sys.executable, os.environ["EXPECTED"])

    @endpoint
    def cpus(self):
        return sorted(os.sched_getaffinity(0))


os.environ["EXPECTED"] = sys.executable
cpu = min(os.sched_getaffinity(0))
host = this_host()
print(host.extent, host.size(), this_proc().size(), len(host))
procs = host.with_python_executable(sys.executable).spawn_procs(per_host={"gpus": 2}, name="named")
print(procs.initialized.get(), list(procs.spawn("look", Look).program.call().get().values()))
procs.stop().get()
command = default_bootstrap_cmd().with_env({"COLOUR": "blue"})
coloured = host.spawn_procs(bootstrap_command=command).spawn("look", Look)
print(coloured.variable.call_one("COLOUR").get(), os.environ.get("COLOUR"))
bound = host.spawn_procs(per_host={"gpus": 1}, proc_bind=[{"cpus": str(cpu)}]).spawn("look", Look)
print(bound.cpus.call_one().get() == [cpu])
try:
    host.spawn_procs(per_host={"gpus": 2}, proc_bind=[{"cpus": "0"}])
except ValueError as error:
    print("proc_bind" in str(error))
here = this_proc().spawn("here", Look)
os.environ["LATE"] = "seen"
print(here.variable.call_one("LATE").get())


async def main():
    async with host.spawn_procs(per_host={"gpus": 2}) as some:
        look = some.spawn("look", Look)
        await look.initialized
        await some.logging_option(stream_to_client=True, aggregate_window_sec=3)
        print(list((await look.variable.call("HOME")).values()) == [os.environ["HOME"]] * 2)
    try:
        some.spawn("late", Look)
    except RuntimeError as error:
        print("stopped" in str(error))


asyncio.run(main())
print(context().actor_instance.rank, this_proc().spawn("again", Look).variable.call_one("LATE").get())
