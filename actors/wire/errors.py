"""What goes wrong between two Roost processes below the level of actors."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer sent what this protocol does not allow.

    It is a fault of the peer or of the carrier, never of the user's call: the link it came over is not to be
    trusted any further and should be dropped.
    """
