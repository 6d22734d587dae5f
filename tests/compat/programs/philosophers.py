"""Five philosophers and a waiter who gives out chopsticks; nobody starves."""

from monarch.actor import Actor, Channel, current_rank, endpoint, this_host

SEATS = 5
MEALS = 3


class Philosopher(Actor):
    def __init__(self, seats):
        self.seat = current_rank().rank
        self.left, self.right = self.seat, (self.seat + 1) % seats
        self.held = set()
        self.meals = 0

    @endpoint
    async def sit(self, waiter, done):
        self.waiter, self.done = waiter, done
        self.ask()

    def ask(self):
        self.waiter.request.broadcast(self.seat, self.left, self.right)

    @endpoint
    async def grant(self, chopstick):
        self.held.add(chopstick)
        if self.held == {self.left, self.right}:
            self.meals += 1
            self.held.clear()
            self.waiter.give_back.broadcast(self.left, self.right)
            if self.meals < MEALS:
                self.ask()
            else:
                self.done.send((self.seat, self.meals))


class Waiter(Actor):
    def __init__(self, philosophers):
        self.philosophers = philosophers
        self.owner = {}
        self.waiting = []

    @endpoint
    async def request(self, seat, left, right):
        self.waiting.append((seat, left, right))
        self.serve()

    @endpoint
    async def give_back(self, left, right):
        del self.owner[left], self.owner[right]
        self.serve()

    def serve(self):
        for order in list(self.waiting):
            seat, left, right = order
            if left not in self.owner and right not in self.owner:
                self.owner[left] = self.owner[right] = seat
                self.waiting.remove(order)
                guest = self.philosophers.flatten("seat").slice(seat=seat)
                guest.grant.broadcast(left)
                guest.grant.broadcast(right)


philosophers = this_host().spawn_procs(per_host={"seats": SEATS}).spawn("philosophers", Philosopher, SEATS)
waiter = this_host().spawn_procs().spawn("waiter", Waiter, philosophers)
done, finished = Channel.open()
philosophers.sit.call(waiter, done).get()
print(sorted(finished.recv().get(timeout=60) for _ in range(SEATS)))
