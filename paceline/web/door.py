"""Where a server listens, and what it asks of those who come."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError
from paceline.web.access import checked_token, is_loopback, new_token

Token = str | None | Literal[False]
"""One of the user's own; None makes one; False asks for none."""

BACKLOG = 2048


@dataclass(frozen=True)
class Door:
    """Where the server listens, and what it asks of those who come."""

    address: str
    port: int
    token: str | None
    loopback: bool


def open_door(host: str, port: int, token: Token) -> Door:
    """Check the address and the token. Without a token only loopback is allowed."""
    whole_number(port, "port", least=0, most=65535)
    if not isinstance(host, str) or not host:
        raise ConfigError(f"host is {host!r}: give an address or name of this machine. 0.0.0.0 means all of them.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} is not an address or name of this machine: {error}.") from error
    loopback = all(is_loopback(str(entry[4][0])) for entry in found)
    if token is False and not loopback:
        raise ConfigError(
            f"Without a token a server listens on loopback only, not on {host}: everyone who can reach this machine "
            "could use it. Do not use token=False, or use host=127.0.0.1."
        )
    chosen = None if token is False else new_token() if token is None else checked_token(token)
    return Door(str(found[0][4][0]), port, chosen, loopback)


def checked_hosts(allowed_hosts: Iterable[str]) -> list[str]:
    """Other names that the server goes by."""
    names = [allowed_hosts] if isinstance(allowed_hosts, str) else list(allowed_hosts)
    for each in names:
        if not isinstance(each, str) or not each or "/" in each:
            raise ConfigError(f"allowed_hosts has {each!r}: give names of hosts, without http:// and port.")
    return names


def bind(host: str, port: int) -> socket.socket:
    """The listening socket, so that a port that is taken is an error where the server is started."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"Cannot listen on {host}: {error.strerror or error}.") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} of {host} is in use: end what listens there, or choose another port (0: any free one)."
            ) from error
        raise ConfigError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    return listening


def url_of(listening: socket.socket, tls: ssl.SSLContext | None) -> str:
    """Where clients find the server."""
    scheme = "http" if tls is None else "https"
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
