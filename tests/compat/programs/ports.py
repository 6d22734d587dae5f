"""Channels whose sending end travels, answers that are sent later, and exceptions through both."""

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host


class Worker(Actor):
    def __init__(self):
        self.parked = []

    @endpoint
    def report(self, port: Port, count: int):
        for number in range(count):
            port.send((current_rank().rank, number))

    @endpoint
    def complain(self, port: Port):
        port.exception(ValueError("not today"))

    @endpoint(explicit_response_port=True)
    def park(self, port: Port, ticket: str):
        self.parked.append((port, ticket))

    @endpoint
    def release(self):
        for port, ticket in self.parked:
            port.send(f"{ticket} released")
        return len(self.parked)

    @endpoint(explicit_response_port=True)
    def refuse(self, port: Port):
        port.exception(RuntimeError("refused"))


workers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("workers", Worker)
port, receiver = Channel.open()
workers.report.broadcast(port, 3)
got = [receiver.recv().get(timeout=30) for _ in range(6)]
print([number for rank, number in got if rank == 0], [number for rank, number in got if rank == 1])

one = workers.slice(gpus=0)
one.complain.broadcast(port)
try:
    receiver.recv().get(timeout=30)
except Exception as error:  # noqa: BLE001
    print("not today" in str(error))

port.send("from here")
print(receiver.recv().get(timeout=30))

parked = one.park.call_one("A"), one.park.call_one("B")
print(one.release.call_one().get())
print([future.get() for future in parked])
try:
    one.refuse.call_one().get()
except Exception as error:  # noqa: BLE001
    print("refused" in str(error))
