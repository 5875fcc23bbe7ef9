"""The stream of a tab: it gets what is new, once, and goes on where it was."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.view.page.routes import lists
from tests.view.journals import attempt, header, row, write
from tests.view.page.paging import Page, showing
from tests.web.client import read_all, until


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = (row(index, {"loss": 1 / index}) for index in range(1, 11))
    return write(tmp_path / "results" / "exp" / "run", [header(), attempt(), *rows])


@pytest.fixture
def page(run: Path) -> Iterator[Page]:
    with showing(run.parents[1]) as page:
        yield page


def test_new_rows_come_once(page: Page, run: Path) -> None:
    id = page.id_of("exp/run")
    cursor = page.get("series", run=id, metric="loss")["cursor"]
    wish = {"run": id, "metrics": ["loss", "unknown"], "x": "step", "smooth": 0.5, "cursor": cursor}
    with page.stream(series=[wish]) as events:
        write(run, [row(11, {"loss": 5.0, "other": 1}), row(12, {"loss": math.nan})])
        got = events.next("rows")
        while got["rows"] < 12:  # they may come in two events
            more = events.next("rows")
            got["series"]["loss"]["x"] += more["series"]["loss"]["x"]
            got["series"]["loss"]["y"] += more["series"]["loss"]["y"]
            got["rows"], got["cursor"] = more["rows"], more["cursor"]
        assert got["series"].keys() == {"loss"}
        assert (got["series"]["loss"]["x"], got["series"]["loss"]["y"]) == ([11, 12], [5.0, None])
        assert len(got["series"]["loss"]["smooth"]) >= 1
        write(run, [row(13, {"loss": 6.0})])
        assert events.next("rows")["series"]["loss"]["x"] == [13]
        last = events.last_id
    write(run, [row(14, {"loss": 7.0})])
    with page.stream(last, series=[wish]) as events:  # the address still has the old cursor
        assert events.next("rows")["series"]["loss"]["x"] == [14]


def test_a_retry_rewinds_the_page(page: Page, run: Path) -> None:
    id = page.id_of("exp/run")
    wish = {"run": id, "metrics": ["loss"], "cursor": page.get("series", run=id, metric="loss")["cursor"]}
    with page.stream(series=[wish]) as events:
        write(run, [attempt(1, start_index=4), row(5, {"loss": 9.0}, attempt=1)])
        assert events.next("rewind") == {"run": id}
        again = page.get("series", run=id, metric="loss")
        assert again["series"]["loss"]["x"] == [1, 2, 3, 4, 5]
        write(run, [row(6, {"loss": 8.0}, attempt=1)])
        assert events.next("rows")["series"]["loss"]["x"][-1] == 6


def test_a_page_that_missed_too_much_asks_again(page: Page, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.view.page.curves.MOST_NEW_ROWS", 5)
    id = page.id_of("exp/run")
    with page.stream(series=[{"run": id, "metrics": ["loss"], "cursor": 0}]) as events:
        assert events.next("rewind") == {"run": id}


def test_the_list_follows(page: Page, run: Path) -> None:
    found = page.get("list")
    with page.stream(list=found["cursor"]) as events:
        new = write(run.parents[1] / "exp" / "another", [header(trial_id="b_00000"), attempt(), row(1, {"loss": 2.0})])
        event = events.next("list")
        assert [entry["path"] for entry in event["entries"]] == ["exp/another"]
        assert event["entries"][0]["metrics"] == {"loss": 2.0}
        last = events.last_id
        shutil.rmtree(new)
        event = events.next("list")
        assert (event["entries"], len(event["removed"])) == ([], 1)
    with page.stream(last, list=found["cursor"]) as events:
        assert events.next("list")["removed"] == event["removed"]


def test_a_cursor_of_another_server(page: Page) -> None:
    for cursor in ("other.3", "x", f"{page.get('list')['cursor']}9"):
        with page.stream(list=cursor) as events:
            assert events.next("list")["reset"]


def test_an_unchanged_list_is_not_sent(page: Page) -> None:
    with page.stream(list=page.get("list")["cursor"]) as events:
        assert events.next("ping") == {}


def test_a_run_that_is_gone_or_unknown(page: Page, run: Path) -> None:
    wishes = [
        {"run": "nosuchrun", "metrics": ["loss"]},
        {"run": page.id_of("exp/run"), "metrics": ["loss"], "cursor": 10},
    ]
    with page.stream(list=page.get("list")["cursor"], series=wishes) as events:
        shutil.rmtree(run)
        assert events.next("list")["removed"] == [wishes[1]["run"]]


@pytest.mark.parametrize(
    "query",
    ["series=5", "series=[{}]", "series=[", 'series=[{"run":"a","metrics":["b"],"smooth":1}]', "logs=" + "[" * 5000,
     'logs=[{"run":"a","rank":-1}]', f'logs=[{{"run":"a","rank":0,"offset":{2**70}}}]',
     "list=" + "x" * 200, "series=" + "[1]" * 30_000],
)  # fmt: skip
def test_wishes_that_cannot_be_read(page: Page, query: str) -> None:
    answer = page.ask("GET", f"/api/live?{query}")
    assert answer.status in (400, 431)


def test_odd_last_event_ids(page: Page) -> None:
    for last in (
        "x",
        '["a",[1],[]]',
        '["a",[],[]]',
        "[" * 1000,
        "[1,2,3]",
        f'["{page.get("list")["cursor"]}{"0" * 5000}",[],[]]',
    ):
        with page.stream(last, list=page.get("list")["cursor"]) as events:
            events.next("ping" if last not in ('["a",[],[]]',) else "list")


def test_streams_are_counted(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MOST_STREAMS", 1)
    state = page.running._server.config.app.state.page  # type: ignore[union-attr]
    with page.stream(list="x") as events:
        events.next("list")
        answer = page.ask("GET", "/api/live?list=x")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    until(lambda: state.streams == 0)  # it is noticed that the tab is gone
    with page.stream(list="x") as events:
        events.next("list")


def test_a_stream_does_not_keep_the_server_from_ending(run: Path) -> None:
    with showing(run) as page, page.connect() as connection:
        token = f"Authorization: Bearer {page.running.token}"
        connection.sendall(f"GET /api/live?list=x HTTP/1.1\r\nHost: localhost\r\n{token}\r\n\r\n".encode())
        assert b"200 OK" in connection.recv(100)
        page.running.stop()
        assert b"event: list" in read_all(connection)
