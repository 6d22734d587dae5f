"""The modules that stand where Monarch's were: found before any other, made from the tables in `names`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import hook
from .later import class_, function
from .names import ABSENT, ALL, MODULES, PLACES, TOP


class StandIn(ModuleType):
    """A module whose names are looked up where the tables say, when they are first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name == hook.NAME and name in MODULES[self.__name__]:
            return hook.current()  # not kept: whoever sets it, anywhere, sets it everywhere
        if f"{self.__name__}.{name}" in MODULES:
            return import_module(f"{self.__name__}.{name}")
        if name not in MODULES[self.__name__]:
            raise AttributeError(
                f"Roost's {self.__name__} has no {name!r}; it has {', '.join(dir(self)) or 'no names'}"
            )
        value = self.__dict__[name] = resolve(self.__name__, name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == hook.NAME and name in MODULES[self.__name__]:
            hook.replace(value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name == hook.NAME and name in MODULES[self.__name__]:
            hook.reset()
        else:
            super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return sorted(MODULES[self.__name__])

    def __reduce__(self) -> Any:
        return import_module, (self.__name__,)


def resolve(module: str, name: str) -> Any:
    """What a name of one of Monarch's modules is here."""
    place = PLACES.get(f"{module}.{name}") or PLACES.get(name)
    if place is None:
        sentence = ABSENT.get(name) or ABSENT.get(module) or ABSENT[""]
        return class_(name, sentence) if name[:1].isupper() else function(name, sentence)
    home, _, attribute = place.partition(":")
    found = import_module(home)
    return getattr(found, attribute) if attribute else found


class Finder(MetaPathFinder, Loader):
    """Finds `monarch` and the modules below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        package = any(module.startswith(f"{fullname}.") for module in MODULES)
        return ModuleSpec(fullname, self, origin=f"roost.compat.{TOP}", is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name, f"Roost in the place of {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__all__"] = list(ALL.get(module.__name__, sorted(MODULES[module.__name__])))


def put_first() -> None:
    """Put the finder before all others. RuntimeError when another `monarch` has been imported already."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    foreign = sys.modules.get(TOP)
    if foreign is not None and not isinstance(foreign, StandIn):
        raise RuntimeError(
            f"monarch has been imported already, from {getattr(foreign, '__file__', None) or 'elsewhere'}: "
            "call roost.compat.monarch.install() before the first `import monarch`"
        )
    sys.meta_path.insert(0, Finder())
