"""ChannelTransport and `enable_transport`. They choose nothing here: Roost's processes talk over unix sockets on one
host and over tcp between hosts, whatever is enabled; what Monarch would refuse is refused."""

from __future__ import annotations

import enum
import re

from ...actors.runtime import current_runtime


class ChannelTransport(enum.Enum):
    """Monarch's transports, by its names."""

    TcpWithLocalhost = "tcp(Localhost)"
    TcpWithHostname = "tcp(Hostname)"
    MetaTlsWithHostname = "metatls(Hostname)"
    MetaTlsWithIpV6 = "metatls(IpV6)"
    Tls = "tls"
    Quic = "quic"
    MetaQuicWithHostname = "metaquic(Hostname)"
    MetaQuicWithIpV6 = "metaquic(IpV6)"
    Local = "local"
    Unix = "unix"

    def get(self) -> ChannelTransport:
        """Itself."""
        return self

    def __repr__(self) -> str:
        return f"ChannelTransport.{self.name}"

    __str__ = __repr__


_BY_TEXT = {"tcp": ChannelTransport.TcpWithHostname, "tls": ChannelTransport.Tls, "unix": ChannelTransport.Unix}
_BY_ALIAS = {
    "ipc": ChannelTransport.Unix,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
}
_ADDRESS = re.compile(r"tcp:(//)?[^/]+:\d+")
_OFFERED = ("tcp", "unix", "local")


class BindSpec:
    """A transport, or the address of one: made of a ChannelTransport, "tcp", "tls" or "tcp://host:port".

    TypeError and ValueError for anything else.

    >>> str(BindSpec("tcp")), BindSpec(ChannelTransport.Unix) == BindSpec("unix")
    ('tcp(Hostname)', True)
    """

    __slots__ = ("_text",)

    def __init__(self, value: ChannelTransport | BindSpec | str) -> None:
        if isinstance(value, BindSpec):
            self._text: str = value._text
        elif isinstance(value, ChannelTransport):
            self._text = value.value
        elif not isinstance(value, str):
            raise TypeError(f"expected ChannelTransport enum, BindSpec, or str, not {value!r}")
        elif value in _BY_TEXT:
            self._text = _BY_TEXT[value].value
        elif _ADDRESS.fullmatch(value) or value in {transport.value for transport in ChannelTransport}:
            self._text = value.replace("//", "")
        else:
            raise ValueError(f'invalid str for BindSpec {value!r}: write "tcp", "tls" or "tcp://host:port"')

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, BindSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"BindSpec({self._text!r})"


_enabled: list[BindSpec] = []


def enable_transport(transport: ChannelTransport | str) -> None:
    """Say which transport the program wants, once, before anything else of Monarch's interface is called.

    Raises RuntimeError when Roost runs already or another one was enabled, TypeError and ValueError for what is no
    transport, NotImplementedError for tls, quic and Meta's own, which Roost has no counterpart of.
    """
    spec = BindSpec(_BY_ALIAS.get(transport, transport) if isinstance(transport, str) else transport)
    if not str(spec).startswith(_OFFERED):
        raise NotImplementedError(
            f'transport `{spec}` is not offered: processes are linked by unix sockets and tcp. Enable "tcp", or none'
        )
    if _enabled:
        if _enabled[0] != spec:
            raise RuntimeError(
                "Only one transport type may be enabled at one time. Currently enabled transport type is "
                f"`{_enabled[0]}`. Attempted to enable transport type `{spec}`."
            )
        return
    if current_runtime() is not None:
        raise RuntimeError(
            "`enable_transport()` must be called before any other calls in the monarch API. Put it before the first "
            "this_host(), context() or job."
        )
    _enabled.append(spec)
