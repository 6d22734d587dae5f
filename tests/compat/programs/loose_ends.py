"""Methods made endpoints by the caller, messages with a port of one's own, coroutines that give futures."""

from monarch.actor import Actor, Channel, as_endpoint, endpoint, returns_future, send, shutdown_context, this_host


class Plain(Actor):
    @endpoint
    def marked(self, value):
        return value + 1

    def unmarked(self, value):
        return value * 2


plain = this_host().spawn_procs(per_host={"gpus": 2}).spawn("plain", Plain)
print(list(as_endpoint(plain.unmarked).call(4).get().values()))
try:
    plain.unmarked.call(4)
except AttributeError:
    print("no endpoint")
port, receiver = Channel.open()
send(plain.marked, (1,), {}, port=port)
print([receiver.recv().get(timeout=30) for _ in range(2)])
ranked_port, ranked = Channel.open_ranked()
send(plain.marked, (10,), {}, port=ranked_port)
print(sorted(ranked.recv().get(timeout=30) for _ in range(2)))


@returns_future
async def total(value):
    return sum((await plain.marked.call(value)).values())


print(total(3).get())
shutdown_context().get()
print("over")
