"""Who may use the page. Every route is taken from the application, so that a new one is tested too."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.air.errors import ConfigError
from paceline.view import dash
from tests.view.page.paging import TOKEN, Page, showing
from tests.web.client import METHODS, read_all


def routes(page: Page) -> list[tuple[str, set[str]]]:
    """The path of each route with an id that is there, and its methods."""
    app: Any = page.running._server.config.app
    id = next(entry["id"] for entry in page.entries().values() if entry["kind"] == "run")
    search = next(entry["id"] for entry in page.entries().values() if entry["kind"] == "search")
    found = []
    for route in app.routes:
        value = search if "search" in route.path else id
        path = route.path.replace("{id}", value).replace("{number}", "1").replace("{name}", "page.js")
        assert "{" not in path, "a route with a parameter that this test does not know"
        found.append((path, set(route.methods)))
    assert {"/", "/healthz", "/api/list", "/api/live"} <= {path for path, _ in found}
    return found


def odd_paths(page: Page) -> list[str]:
    others = ["/nothing", "/api/", "/healthz/", "//healthz", "/api/list/../../healthz", "/assets/../healthz"]
    return [path for path, _ in routes(page)] + others


def listening() -> set[str]:
    connections = psutil.Process(os.getpid()).net_connections(kind="inet")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def test_without_options_it_listens_on_loopback_with_a_token(made: Path) -> None:
    """S1."""
    before = listening()
    running = dash(made, blocking=False)
    assert running is not None
    with running:
        assert running.url.startswith("http://127.0.0.1:")
        assert listening() - before <= {"127.0.0.1"}
        assert running.token is not None
        assert len(base64.urlsafe_b64decode(running.token + "=")) == 32  # 256 bits
        assert running.link == f"{running.url}/?token={running.token}"
        assert running.token not in repr(running)
    assert listening() == before


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_a_token_it_listens_nowhere_else(made: Path, host: str) -> None:
    before = listening()
    with pytest.raises(ConfigError, match=rf"loopback.*{host}.*token"):
        dash(made, host=host, port=0, token=False, blocking=False)
    assert listening() == before


@pytest.mark.parametrize("token", [None, "wrong" * 8, TOKEN[:-1], TOKEN + "x"])
def test_every_route_and_method_needs_the_token(page: Page, token: str | None) -> None:
    """S2."""
    for path in odd_paths(page):
        for method in METHODS:
            answer = page.ask(method, path, token=token)
            is_open = path == "/healthz" and method in ("GET", "HEAD")
            assert answer.status == (200 if is_open else 401), f"{method} {path}"
            assert not any(name.lower().startswith("access-control") for name in answer.headers)
            assert "set-cookie" not in answer.headers
            assert "basic" not in str(answer.headers.get_all("www-authenticate")).lower()


def test_cookies_that_are_not_ours(page: Page) -> None:
    page.log_in()
    name, _, value = page.cookie.partition("=")
    for wrong in (
        "",
        f"{name}=",
        f"{name}={value[:-1]}",
        f"{name}={TOKEN}",
        f"other={value}",
        f"{name}={value}x",
        ";=;",
    ):
        for path in odd_paths(page):
            if path != "/healthz":
                assert page.ask("GET", path, headers={"Cookie": wrong}, token=None).status == 401, (wrong, path)


@pytest.mark.parametrize("other", ['theme={"a": 1}', "a b=c", "=v", "flag", 'odd@[]"=2', "\xe4=\xf6"])
def test_odd_cookies_of_other_servers(page: Page, other: str) -> None:
    page.log_in()
    for cookies in (f"{other}; {page.cookie}", f"{page.cookie}; {other}"):
        assert page.ask("GET", "/api/about", headers={"Cookie": cookies}, token=None).status == 200


def test_the_token_becomes_a_cookie(page: Page) -> None:
    for path in ("/", "/compare", "/run/abc", "/search/abc-_"):
        answer = page.ask("GET", f"{path}?a=1&token={TOKEN}&b=%20%26", token=None)
        assert answer.status == 303
        assert answer.headers["location"] == f"{path}?a=1&b=+%26"
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert TOKEN not in cookie
        assert answer.headers["cache-control"] == "no-store"
    page.log_in()
    assert page.as_browser("GET", "/").status == 200
    assert page.as_browser("GET", "/api/list").status == 200
    with showing(page.running.root, token="another-token-of-another-server") as other:
        assert other.ask("GET", "/api/list", headers={"Cookie": page.cookie}, token=None).status == 401


def test_a_link_on_a_page_of_another_server(page: Page) -> None:
    """Browsers do not send a strict cookie along a redirect that a foreign page led to: a page comes in between."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answer = page.ask("GET", f'/?q="><script>&token={TOKEN}', headers=headers, token=None)
    assert answer.status == 200
    assert "set-cookie" in answer.headers
    assert answer.headers["cache-control"] == "no-store"
    assert b'content="0; url=/?q=%22%3E%3Cscript%3E"' in answer.body
    assert TOKEN.encode() not in answer.body


def test_a_browser_is_started_without_the_token(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with showing(made, open_browser=True) as page:
        assert TOKEN not in opened[0]
        path = opened[0].removeprefix(page.running.url)
        assert "set-cookie" in page.ask("GET", path, token=None).headers
        assert page.ask("GET", path, token=None).status == 401  # it works once
    monkeypatch.setattr("paceline.view.page.session.TICKET_SECONDS", 0.0)
    with showing(made, open_browser=True) as page:
        assert page.ask("GET", opened[1].removeprefix(page.running.url), token=None).status == 401
    with showing(made, open_browser=True, token=False) as page:
        assert opened[2] == page.running.url


@pytest.mark.parametrize(
    "path",
    ["//evil.com/", "/%2fevil.com", "/run//evil.com", "/run/a/b", "/api/list", "/assets/x", "/run/..", "/run/a%0d%0ab"],
)  # fmt: skip
def test_only_pages_take_the_token_from_the_address(page: Page, path: str) -> None:
    answer = page.ask("GET", f"{path}?token={TOKEN}", token=None)
    assert answer.status == 401
    assert "location" not in answer.headers
    assert "set-cookie" not in answer.headers


def test_a_wrong_token_in_the_address(page: Page) -> None:
    for query in ("token=", "token=wrong", f"token={TOKEN}x", f"token=x&token={TOKEN}", f"TOKEN={TOKEN}"):
        answer = page.ask("GET", f"/?{query}", token=None)
        assert answer.status == 401
        assert "set-cookie" not in answer.headers
    assert page.ask("POST", f"/?token={TOKEN}", token=None).status == 401
    assert page.ask("GET", f"/?token={TOKEN}", headers={"Host": "evil.com"}, token=None).status in (401, 421)


def test_a_browser_without_a_cookie_is_told_what_to_do(page: Page) -> None:
    answer = page.ask("GET", "/run/abc", headers={"Accept": "text/html,*/*"}, token=None)
    assert answer.status == 401
    assert b"paceline dash" in answer.body
    assert answer.headers["content-type"].startswith("text/html")


def page_token(page: Page) -> str:
    page.log_in()
    found = re.search(rb'name="paceline-token" content="([0-9a-f]{64})"', page.as_browser("GET", "/").body)
    assert found is not None
    return found[1].decode()


def test_what_does_something_needs_the_second_token(page: Page) -> None:
    """Neither the cookie alone, nor the second token alone; a foreign page can send the one, and know neither."""
    second = page_token(page)
    assert second != TOKEN
    for path, allowed in routes(page):
        for method in sorted({*METHODS} - {"GET", "HEAD"}):
            assert page.as_browser(method, path).status == 403, f"{method} {path}"
            assert page.as_browser(method, path, X_Paceline_Token="wrong" * 10).status == 403
            assert page.as_browser(method, path, X_Paceline_Token=TOKEN).status == 403
            assert page.ask(method, path, headers={"X-Paceline-Token": second}, token=None).status == 401
            status = page.as_browser(method, path, X_Paceline_Token=second).status
            assert status in ((200, 409, 422, 404) if method in allowed else (405,)), f"{method} {path}"


def test_programs_send_the_token_itself(page: Page) -> None:
    for path, allowed in routes(page):
        for method in sorted(allowed):
            if path == "/api/live" and method == "GET":
                continue  # it does not end
            assert page.ask(method, path).status not in (401, 403, 421, 500), f"{method} {path}"


def test_websockets(page: Page) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "a" * 24,
    }
    for path in odd_paths(page):
        assert page.ask("GET", path, headers=upgrade, token=None).status == (200 if path == "/healthz" else 401)
        if path != "/api/live":
            assert page.ask("GET", path, headers=upgrade).status != 101


@pytest.mark.parametrize("host", ["evil.com", "127.0.0.1.evil.com", "localhost.evil.com", "0.0.0.0", ""])
def test_other_names_of_the_host(page: Page, host: str) -> None:
    page.log_in()
    for path in odd_paths(page):
        assert page.ask("GET", path, headers={"Host": host}).status == 421
        assert page.as_browser("GET", path, Host=host).status == 421


@pytest.mark.parametrize("origin", ["http://evil.com", "null", "http://127.0.0.1:1", "https://localhost", "file://"])
def test_pages_of_other_origins(page: Page, origin: str) -> None:
    second = page_token(page)
    for path, allowed in routes(page):
        for method in sorted(allowed):
            answer = page.as_browser(method, path, Origin=origin, X_Paceline_Token=second)
            assert answer.status == 403, f"{method} {path}"
            assert page.ask(method, path, headers={"Origin": origin}).status == 403


def test_its_own_pages(page: Page) -> None:
    second = page_token(page)
    host, port = page.address
    own = f"http://{host}:{port}"
    id = page.id_of("search")
    assert page.as_browser("GET", "/api/list", Origin=own).status == 200
    assert page.as_browser("POST", f"/api/run/{id}/stop", Origin=own, X_Paceline_Token=second).status == 409


def test_a_page_of_another_server_on_this_machine(page: Page) -> None:
    """Cookies of a host go to all its ports. A browser says which page asks."""
    page.log_in()
    for site in ("same-site", "cross-site"):
        headers = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "no-cors"}
        assert page.as_browser("GET", "/api/list", **headers).status == 403
        assert page.as_browser("GET", "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate").status == 200
    assert page.as_browser("GET", "/api/list", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors").status == 200


def test_without_a_token(made: Path) -> None:
    with showing(made, token=False) as page:
        assert page.running.link == page.running.url
        assert page.ask("GET", "/api/list").status == 200
        assert page.ask("GET", "/api/list", headers={"Host": "evil.com"}).status == 421
        assert page.ask("GET", "/api/list", headers={"Origin": "http://evil.com"}).status == 403
        stop = f"/api/run/{page.id_of('search')}/stop"
        assert page.ask("POST", stop).status == 403  # any page of any site could send it
        found = re.search(rb'content="([0-9a-f]{64})"', page.ask("GET", "/").body)
        assert found is not None
        assert page.ask("POST", stop, headers={"X-Paceline-Token": found[1].decode()}).status == 409


def test_a_server_that_only_shows(made: Path) -> None:
    with showing(made, read_only=True) as page:
        assert page.get("about")["read_only"] is True
        for action in ("stop", "stacks"):
            assert page.ask("POST", f"/api/run/{page.id_of('search')}/{action}").status == 403


def test_every_answer_has_the_headers_of_a_page(page: Page) -> None:
    page.log_in()
    for path in odd_paths(page):
        if path == "/api/live":
            continue
        for answer in (page.as_browser("GET", path), page.ask("GET", path, token=None)):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "server" not in answer.headers
            kind = answer.headers["content-type"]
            if kind.startswith("text/html") and answer.status == 200:
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert "unsafe-inline" not in answer.headers["content-security-policy"].split("style-src")[0]


TRICKS = [
    *("..", "../..", "..%2f..", "%2e%2e", "%2e%2e%2f%2e%2e", "%252e%252e", "..\\..", "%5c..%5c", ".", "%20", "~", "C:"),
    *("%00", "a%00b", "/etc/passwd", "%2fetc%2fpasswd", "../../../../etc/passwd", "%ef%bc%8e%ef%bc%8e", "%c0%ae%c0%ae"),
    *("a" * 500, "%0d%0aSet-Cookie:%20a=b", "-1", "1e3", "0x1", "'\"<>"),
]


@pytest.fixture(scope="module")
def opened_files() -> Iterator[list[str]]:
    """The paths of all files that this process opens while a test collects them."""
    found: list[str] = []
    active = True

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if active and event == "open" and isinstance(given[0], str | bytes):
            found.append(os.path.realpath(os.fsdecode(given[0])))

    sys.addaudithook(hook)
    yield found
    active = False


def test_ids_and_names_are_never_paths(page: Page, made: Path, opened_files: list[str]) -> None:
    """S7."""
    known = page.id_of("search")
    run = next(path for path, _ in routes(page) if path.endswith("/checkpoints")).rpartition("/")[0]
    id = run.rpartition("/")[2]
    templates = [path.replace(each, "{}") for each in (known, id) for path, _ in routes(page) if each in path]
    templates += [
        "/assets/{}", "/assets/../{}", f"{run}/checkpoints/{{}}/download", f"{run}/{{}}", "/api/compare?ids={}",
        "/api/series?metric=loss&run={}", "/api/sparks?metric=loss&ids={}", "/api/logs?rank=0&run={}",
        f"/api/logs?run={id}&rank={{}}",
    ]  # fmt: skip
    opened_files.clear()
    for template in templates:
        for trick in TRICKS:
            path = template.format(trick)
            answer = raw_get(page, path)
            status = int(answer[9:12])
            is_page = template in ("/run/{}", "/search/{}")  # which says itself that there is no such run
            assert status in (400, 404, 405) or ((is_page or "sparks" in path) and status == 200), (path, answer[:200])
            assert b"set-cookie" not in answer.partition(b"\r\n\r\n")[0].lower()
            assert b"root:" not in answer
    allowed = (
        str(made),
        str(Path(sys.modules["paceline"].__file__ or "").parent),
        "/proc",
        sys.prefix,
        sys.base_prefix,
    )
    assert [path for path in opened_files if not path.startswith(allowed)] == []


def raw_get(page: Page, path: str) -> bytes:
    """As it is: a client library would change some paths."""
    with page.connect() as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        connection.sendall(head.encode())
        return read_all(connection)
