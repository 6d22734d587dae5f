"""Durations as Monarch's configuration writes them: "1m 30s", "500ms", "1day 12h".

>>> seconds("1h 2m 3s 4ms")
3723.004
>>> normal("90s"), normal("1500ms"), normal("36h"), normal("0s")
('1m 30s', '1s 500ms', '1day 12h', '0s')
"""

from __future__ import annotations

import re

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "day": 86_400_000_000_000,
    "week": 604_800_000_000_000,
}
_SPELLINGS = {
    "ns": ("ns", "nsec"),
    "us": ("us", "usec", "µs"),
    "ms": ("ms", "msec", "millis"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "day": ("d", "day", "days"),
    "week": ("w", "week", "weeks"),
}
_UNIT_OF = {spelling: _UNITS[unit] for unit, spellings in _SPELLINGS.items() for spelling in spellings}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")


def _nanoseconds(text: str) -> int:
    total, at = 0.0, 0
    while at < len(text) or not text:
        part = _PART.match(text, at)
        if part is None or part[2] not in _UNIT_OF:
            wanted = "a unit such as s, ms or m" if part is not None else f"a number and its unit at {at}"
            raise ValueError(f"Invalid duration format {text!r}: expected {wanted}")
        total += float(part[1]) * _UNIT_OF[part[2]]
        at = part.end()
    return round(total)


def seconds(text: str) -> float:
    """The seconds of a duration. ValueError, "Invalid duration format …", when it is none."""
    return _nanoseconds(text) / 1e9


def normal(text: str) -> str:
    """A duration as it is told: the largest units first, none that is zero."""
    left = _nanoseconds(text)
    parts = []
    for unit in ("day", "h", "m", "s", "ms", "us", "ns"):
        count, left = divmod(left, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}{'s' if unit == 'day' and count > 1 else ''}")
    return " ".join(parts) or "0s"
