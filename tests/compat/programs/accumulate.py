"""Answers folded into one as they arrive."""

import operator

from monarch.actor import Accumulator, Actor, current_rank, endpoint, this_host


class Shard(Actor):
    @endpoint
    def total(self, factor):
        return factor * (1 + current_rank().rank)


shards = this_host().spawn_procs(per_host={"gpus": 4}).spawn("shards", Shard)
totals = Accumulator(shards.total, 0, operator.add)
print(totals.accumulate(1).get(), totals.accumulate(factor=10).get())
print(sorted(Accumulator(shards.total, [], lambda found, value: [*found, value]).accumulate(2).get()))
