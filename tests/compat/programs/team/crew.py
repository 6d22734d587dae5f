"""A module beside the script, imported by the workers too."""

import monarch
from monarch.actor import Actor, current_rank, endpoint


class Sailor(Actor):
    def __init__(self, ship):
        self.ship = ship

    @endpoint
    def report(self):
        return f"{self.ship} {current_rank().rank} {monarch.__name__}"


class Lost(Exception):
    pass
