"""Who may talk to the server: a token for everything but /healthz, known Host names, no foreign pages.

A server on this machine is within reach of every web page that its user opens. So the token is asked for on
loopback too, a Host that is not one of ours is refused (a page whose name was pointed at 127.0.0.1 sends its own),
and so is an Origin that is not ours. No CORS headers are ever sent.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Iterable
from typing import Any

from paceline.air.errors import ConfigError
from paceline.web.problem import Problem, Receive, Send, refuse

logger = logging.getLogger("paceline.web.access")

OPEN_PATH = "/healthz"
SHORTEST_TOKEN = 16
LOOPBACK_NAMES = frozenset(["localhost", "127.0.0.1", "::1"])
SAFE_METHODS = ("GET", "HEAD")


def new_token() -> str:
    """A fresh token of 256 bits."""
    return secrets.token_urlsafe(32)


def checked_token(token: str) -> str:
    """A token of the user's own: long enough, and fit to be sent in a header."""
    if not isinstance(token, str):
        raise ConfigError(f"token is a {type(token).__name__}: give text, None for a new one, or False for none.")
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"The token must have {SHORTEST_TOKEN} or more printable ASCII characters without spaces. "
            "Leave it out and one is made."
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware that lets through only what may pass."""

    def __init__(
        self, app: Any, *, token: str | None, loopback: bool, allowed_hosts: Iterable[str] = (), log: bool = False
    ) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._any_address = not loopback
        self._hosts = LOOPBACK_NAMES | {name.lower() for name in allowed_hosts}
        if not loopback:
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._log = log

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if self._log:
            send = _logged(scope, send)
        problem = self._objection(scope)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await self.reject(problem, scope, send)

    async def reject(self, problem: Problem, scope: dict[str, Any], send: Send) -> None:
        """Answer a request that may not pass."""
        await refuse(problem, send, unread=True)

    def _objection(self, scope: dict[str, Any]) -> Problem | None:
        headers = dict(scope["headers"])
        method, host, origin = scope["method"], headers.get(b"host", b""), headers.get(b"origin")
        is_open = scope["path"] == OPEN_PATH and method in SAFE_METHODS
        if not is_open and (problem := self.refusal(method, headers)) is not None:
            return problem
        if not self.is_ours(host):
            return _WRONG_HOST
        if origin and origin not in (b"http://" + host, b"https://" + host):
            return _WRONG_ORIGIN
        return None

    def refusal(self, method: str, headers: dict[bytes, bytes]) -> Problem | None:
        """Why a request may not pass for want of a token; None if it may."""
        authorization = headers.get(b"authorization", b"")
        if self._token is None or self._has_token(authorization, method):
            return None
        return _WRONG_TOKEN if authorization else _NO_TOKEN

    def _has_token(self, authorization: bytes, method: str) -> bool:
        scheme, _, given = authorization.partition(b" ")
        scheme = scheme.lower()
        if scheme == b"basic" and method in SAFE_METHODS:  # a browser's way; it must not be able to change anything
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme != b"bearer":
            return False
        return self.is_token(given.strip())

    def is_token(self, given: bytes) -> bool:
        """Compared in constant time."""
        return self._token is not None and hmac.compare_digest(given, self._token)

    def is_ours(self, host: bytes) -> bool:
        """Whether a Host header names this server."""
        name = host.decode("latin-1").lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.partition(":")[0]
        if name in self._hosts:
            return True
        if not self._any_address:
            return False
        try:  # an address, unlike a name, cannot have been pointed here by somebody else
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


HOW_TO_SEND = (
    "send it as the header 'Authorization: Bearer <token>'. The server printed it, or wrote it to its token file, when "
    "it started."
)
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="paceline"'), (b"www-authenticate", b'Basic realm="paceline"'))
_NO_TOKEN = Problem(401, f"A token is needed: {HOW_TO_SEND}", headers=_CHALLENGE)
_WRONG_TOKEN = Problem(401, f"The token is wrong, or not sent in the right form: {HOW_TO_SEND}", headers=_CHALLENGE)
_WRONG_HOST = Problem(
    421, "The Host header is not a name of this server. Use the address that it listens on, or start it with that name."
)
_WRONG_ORIGIN = Problem(403, "Pages of other origins cannot use this server.")


def _logged(scope: dict[str, Any], send: Send) -> Send:
    """Write a line when the response begins: the path without its query, where people put secrets."""
    began = time.perf_counter()

    async def logging_send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            client = scope.get("client") or ("-",)
            spent = (time.perf_counter() - began) * 1000
            path = ascii(scope["path"])[1:-1]
            logger.info("%s %s %s %d %.1f ms", client[0], scope["method"], path, message["status"], spent)
        await send(message)

    return logging_send
