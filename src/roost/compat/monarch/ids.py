"""Uid and ProcId: Monarch's names of things, `label` for a singleton and `label<number>` for one of many.

>>> Uid.from_string("worker<8>").instance_value, str(Uid.instance_from_value(7, "worker"))
(7, 'worker<8>')
>>> Uid.from_string("root").is_singleton
True
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

# Base 58, lower case first.
_DIGITS = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
_UID = re.compile(r"(?P<label>[a-z][A-Za-z0-9_-]*)?(?:<(?P<number>[1-9A-HJ-NP-Za-km-z]+)>)?")


def _written(value: int) -> str:
    text = ""
    while True:
        value, digit = divmod(value, 58)
        text = _DIGITS[digit] + text
        if not value:
            return text


def _read(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 58 + _DIGITS.index(digit)
    return value


@dataclass(frozen=True, slots=True, repr=False)
class Uid:
    """A label, a number of 64 bits, or both."""

    label: str | None = None
    instance_value: int | None = None

    @classmethod
    def anonymous(cls) -> Uid:
        """A new number without a label."""
        return cls(None, secrets.randbits(64))

    @classmethod
    def instance(cls, label: str | None = None) -> Uid:
        """A new number under this label."""
        return cls.instance_from_value(secrets.randbits(64), label)

    @classmethod
    def instance_from_value(cls, value: int, label: str | None = None) -> Uid:
        """This number under this label."""
        if label is not None and not isinstance(label, str):
            raise TypeError(f"a label is a str, not {label!r}")
        return cls(label, value)

    @classmethod
    def from_string(cls, text: str) -> Uid:
        """The Uid that is written so; ValueError, "invalid uid …", when none is."""
        found = _UID.fullmatch(text)
        if found is None or not text:
            raise ValueError(
                f"invalid uid {text!r}: it is label, label<number> or <number>; labels begin in lower case"
            )
        number = found["number"]
        return cls(found["label"], None if number is None else _read(number))

    @property
    def is_instance(self) -> bool:
        """Whether it has a number."""
        return self.instance_value is not None

    @property
    def is_singleton(self) -> bool:
        """Whether it is a label alone."""
        return self.instance_value is None

    def __str__(self) -> str:
        number = "" if self.instance_value is None else f"<{_written(self.instance_value)}>"
        return f"{self.label or ''}{number}"

    def __repr__(self) -> str:
        return f"Uid({str(self)!r})"


@dataclass(frozen=True, slots=True, repr=False)
class ProcId:
    """The name of a process."""

    uid: Uid

    @classmethod
    def from_string(cls, text: str) -> ProcId:
        """The ProcId that is written so; ValueError when none is."""
        return cls(Uid.from_string(text))

    @property
    def label(self) -> str | None:
        """The label of its uid."""
        return self.uid.label

    def __str__(self) -> str:
        return str(self.uid)

    def __repr__(self) -> str:
        return f"ProcId({str(self)!r})"
