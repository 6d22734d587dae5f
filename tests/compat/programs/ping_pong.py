"""Two meshes whose members play with their partner of the same rank."""

from monarch.actor import Actor, current_rank, endpoint, this_host


class Player(Actor):
    def __init__(self, word):
        self.word = word
        self.heard = []

    @endpoint
    async def meet(self, others):
        self.partner = others.slice(**current_rank())

    @endpoint
    async def serve(self, rounds):
        for turn in range(rounds):
            answer = await self.partner.hit.call_one(f"{self.word} {turn}")
            self.heard.append(answer)
        return self.heard

    @endpoint
    async def hit(self, ball):
        self.heard.append(ball)
        return f"{self.word} to {ball}"


left = this_host().spawn_procs(per_host={"gpus": 2}).spawn("left", Player, "ping")
right = this_host().spawn_procs(per_host={"gpus": 2}).spawn("right", Player, "pong")
left.meet.call(right).get()
right.meet.call(left).get()
for point, heard in left.serve.call(2).get().items():
    print(point["gpus"], heard)
