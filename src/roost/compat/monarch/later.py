"""Names of Monarch's that Roost has no counterpart of yet: they can be imported, and say so when they are used."""

from __future__ import annotations

from typing import Any


class NotOffered(NotImplementedError):
    """Something of Monarch's interface was used that Roost does not have."""


def function(name: str, sentence: str) -> Any:
    """A function that raises NotOffered; so does taking anything from it, or entering it."""
    return _Absent(name, sentence)


def class_(name: str, sentence: str) -> type:
    """A class that cannot be made, nor derived from."""

    def refuse(*args: object, **kwargs: object) -> Any:
        raise NotOffered(f"{name}: {sentence}")

    return type(name, (), {"__new__": refuse, "__init_subclass__": refuse, "__doc__": sentence})


class _Absent:
    def __init__(self, name: str, sentence: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = sentence

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise NotOffered(f"{self.__name__}: {self.__doc__}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotOffered(f"{self.__name__}: {self.__doc__}")

    def __enter__(self) -> Any:
        return self()

    def __exit__(self, *exc: object) -> None:
        return None

    def __repr__(self) -> str:
        return f"<{self.__name__}, not offered: {self.__doc__}>"
