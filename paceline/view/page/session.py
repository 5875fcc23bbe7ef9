"""Who may use the page: the token in the link becomes a cookie, and what changes something needs a second token.

The link that `paceline dash` prints has the token in its query. It is exchanged at once for a cookie, so that it stays
neither in the address bar nor in bookmarks. A browser that is started here gets a link that works once instead, since
every user of the machine can read the arguments of a process. A browser sends the cookie with every request, also with
one that another program's page on this machine makes: it is enough for reading only. Requests that do something carry
the page's own token as well, which only the page can know, in a header that no foreign page can add. Programs send the
token itself.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from html import escape
from typing import Any
from urllib.parse import parse_qsl, urlencode

from paceline.web.access import HOW_TO_SEND, SAFE_METHODS, Guard
from paceline.web.problem import Problem, Receive, Send, answer

PAGE_TOKEN_HEADER = b"x-paceline-token"
PAGES = re.compile(r"/|/compare|/(run|search)/[A-Za-z0-9_-]{1,64}")
"""What a browser shows; everything else is asked for by the page."""
TICKET_SECONDS = 60.0
"""How long a browser that is started here may take to ask for the page."""
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageGuard(Guard):
    """Lets requests through that have the token, or the cookie that was made from it."""

    def __init__(self, app: Any, *, token: str | None, tls: bool = False, **more: Any) -> None:
        super().__init__(app, token=token, **more)
        secret = (token or secrets.token_urlsafe(32)).encode()
        self._cookie_name = f"paceline-{_derived(secret, b'name')[:12]}"  # several servers share the cookies of a host
        self._cookie = _derived(secret, b"cookie")
        self._attributes = "; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if tls else "")
        self._needs_token = token is not None
        self.page_token = _derived(secret, b"page")
        """What the page sends along with requests that do something."""
        self._ticket: tuple[bytes, float] | None = None

    def new_ticket(self) -> str | None:
        """What a browser can exchange for the cookie instead of the token, once and soon; None if it needs neither."""
        if not self._needs_token:
            return None
        ticket = secrets.token_urlsafe(32)
        self._ticket = ticket.encode(), time.monotonic() + TICKET_SECONDS
        return ticket

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            send = _with_headers(send)
            if b"token=" in scope["query_string"] and scope["method"] == "GET" and PAGES.fullmatch(scope["path"]):
                await self._exchange(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    async def _exchange(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """The cookie for the token, and the same page again without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), "")
        headers = dict(scope["headers"])
        if not self.is_ours(headers.get(b"host", b"")) or (self._needs_token and not self._opens(given.encode())):
            await super().__call__(scope, receive, send)  # which says what is wrong
            return
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        location = scope["path"] + (f"?{rest}" if rest else "")
        cookie = f"{self._cookie_name}={self._cookie}{self._attributes}"
        more = [(b"cache-control", b"no-store")]
        if self._needs_token:
            more.append((b"set-cookie", cookie.encode()))
        if headers.get(b"sec-fetch-site") == b"cross-site":  # a redirect would not carry the cookie, being strict
            await answer(send, 200, b"text/html; charset=utf-8", _GO_ON % escape(location).encode(), *more)
        else:
            await answer(send, 303, b"text/plain", b"", (b"location", location.encode()), *more)

    def _opens(self, given: bytes) -> bool:
        """Whether it is the token, or the ticket, which is used up then."""
        if self._ticket is not None:
            ticket, deadline = self._ticket
            if hmac.compare_digest(given, ticket):
                self._ticket = None
                return time.monotonic() < deadline
        return self.is_token(given)

    def refusal(self, method: str, headers: dict[bytes, bytes]) -> Problem | None:
        if self._needs_token:
            problem = super().refusal(method, headers)
            if problem is None:
                return None
            if not self._has_cookie(headers):
                return Problem(problem.status, problem.reason, headers=_CHALLENGE)
        if method in SAFE_METHODS:
            return _FOREIGN if _is_foreign(headers) else None
        given = headers.get(PAGE_TOKEN_HEADER, b"")
        return None if hmac.compare_digest(given, self.page_token.encode()) else _NO_PAGE_TOKEN

    async def reject(self, problem: Problem, scope: dict[str, Any], send: Send) -> None:
        if problem.status == 401 and b"text/html" in dict(scope["headers"]).get(b"accept", b""):
            await answer(send, 401, b"text/html; charset=utf-8", _NO_COOKIE, *_CHALLENGE, (b"connection", b"close"))
        else:
            await super().reject(problem, scope, send)

    def _has_cookie(self, headers: dict[bytes, bytes]) -> bool:
        """All servers of this machine share its cookies. http.cookies rejects all of them if one is odd."""
        name = self._cookie_name.encode()
        pairs = (each.strip().partition(b"=") for each in headers.get(b"cookie", b"").split(b";"))
        return any(key == name and hmac.compare_digest(value, self._cookie.encode()) for key, _, value in pairs)


_CHALLENGE = ((b"www-authenticate", b'Bearer realm="paceline"'),)
"""Only this: for another one, browsers would ask for a name and a password."""
_GO_ON = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>paceline</title>
<meta http-equiv="refresh" content="0; url=%b">"""
"""The next request comes from a page of ours, so that it carries the cookie."""
_NO_COOKIE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>paceline</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 36em; margin: 4em auto; padding: 0 1em">
<h1>This page needs a token</h1><p>Open the link that <code>paceline dash</code> printed when it started. If the server
was started again since, it printed a new one.</p>"""
_NO_PAGE_TOKEN = Problem(
    403,
    f"This request needs the page's own token in the header X-Paceline-Token. A program can use the server's token: "
    f"{HOW_TO_SEND}",
)
_FOREIGN = Problem(403, "Pages of other servers cannot use this one.")


def _is_foreign(headers: dict[bytes, bytes]) -> bool:
    """Whether a page of another origin asks with our cookie. To follow a link to a page is fine."""
    site, mode = headers.get(b"sec-fetch-site", b"none"), headers.get(b"sec-fetch-mode", b"")
    return site not in (b"same-origin", b"none") and mode != b"navigate"


def _derived(secret: bytes, purpose: bytes) -> str:
    """What cannot be computed, or be led back to the token, without it."""
    return hashlib.blake2b(purpose, key=hashlib.sha256(secret).digest(), digest_size=32).hexdigest()


def _with_headers(send: Send) -> Send:
    async def sending(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return sending
