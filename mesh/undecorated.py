"""Methods of an actor that are no endpoints, called through a mesh all the same: `as_endpoint(mesh.method)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ..actors.endpoint import EndpointDefinition
from .endpoints import MeshEndpoint

if TYPE_CHECKING:
    from .actormesh import ActorMesh


class NotAnEndpoint:
    """An attribute of a mesh that names a method without `@endpoint`; it cannot be called before it is wrapped."""

    def __init__(self, mesh: ActorMesh, name: str) -> None:
        self._mesh = mesh
        self._name = name

    def _why(self) -> str:
        cls = self._mesh._members.cls.__qualname__
        return (
            f"{cls}.{self._name} is a method but no endpoint: put @endpoint on it, or call it as one by "
            f"as_endpoint(mesh.{self._name}).call(...)"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(self._why())

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name if name.startswith("_") else self._why())

    def __repr__(self) -> str:
        return f"<method {self._mesh._members.cls.__qualname__}.{self._name}, no endpoint>"

    def __reduce__(self) -> Any:
        return NotAnEndpoint, (self._mesh, self._name)


class _MethodEndpoint(MeshEndpoint[Any, Any]):
    """A method that is called as an endpoint."""

    def __reduce__(self) -> Any:
        name, explicit = self._definition.function.__name__, self._definition.explicit_response_port
        return _again, (self._mesh, name, explicit)


def _again(mesh: ActorMesh, name: str, explicit: bool) -> MeshEndpoint[Any, Any]:
    return as_endpoint(NotAnEndpoint(mesh, name), explicit_response_port=explicit)


def as_endpoint(method: Any, *, propagate: Any = None, explicit_response_port: bool = False) -> MeshEndpoint[Any, Any]:
    """Call a method that has no `@endpoint` as if it had: `as_endpoint(mesh.method).call_one(1)`.

    Sync and async methods; arguments are checked against the signature. With `explicit_response_port=True` the
    method's first argument is the Port of its answer. Raises TypeError for what is no method of a mesh's actors.

    >>> as_endpoint(counters.peek).call().get().values()              # doctest: +SKIP
    [7, 6]
    """
    del propagate  # accepted for scripts written for other systems
    if isinstance(method, MeshEndpoint):
        if explicit_response_port and not method._definition.explicit_response_port:
            raise TypeError(f"{method!r} is an endpoint already, and answers by its return value")
        return method
    if not isinstance(method, NotAnEndpoint):
        raise TypeError(f"as_endpoint takes a method of a mesh, as as_endpoint(mesh.method), not {method!r}")
    function: Callable[..., Any] = getattr(method._mesh._members.cls, method._name)
    definition: EndpointDefinition[Any, Any] = EndpointDefinition(
        function, explicit_response_port=explicit_response_port
    )
    definition.name = f".{method._name}" + ("!" if explicit_response_port else "")
    return _MethodEndpoint(method._mesh, definition)
