"""Rows V1 to V4: how soon runs are on the screen of a real browser: a search of 10,000 trials, a run of 1,000,000 rows.

The list is timed from the start of the server's process, curves from opening the page of the run. A cold server has an
empty cache of its own. The files are in the system's cache for all viewers: they were written a moment before.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from benchmarks import chromium
from benchmarks import view_workload as workload
from benchmarks.harness import OURS, Bench, MeasureError
from benchmarks.table import Row, Target
from benchmarks.viewers import Data, MlflowUi, Paceline, Site, TensorBoard, Viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LIVE_ROWS = 40
LIVE_METRIC = "value"
_numbers = itertools.count()
T = TypeVar("T")


@dataclass
class Seen:
    """How long somebody waited for what, in seconds, and what the server weighed in the end, in MB."""

    listed: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


@cache
def _data(bench: Bench) -> Data:
    """Kept: it takes half a minute, and two measures look at it."""
    trials, rows = bench.repeats(10_000, 1_000), bench.repeats(1_000_000, 100_000)
    root = bench.scratch / "runs"
    bench.run(OURS / "view_data.py", str(root), str(trials), str(rows))
    return Data(trials, rows, root)


def on_screen(bench: Bench) -> Iterator[Row]:
    """The list of a cold server, the curves of a run, and the same curves again."""
    data = _data(bench)
    ours, restarted = Seen(), list[float]()
    with chromium.chromium() as browser:
        for _ in range(bench.repeats(5)):
            _see_list(bench, browser, _cold(bench), data, ours)
            viewer = _cold(bench)
            _see_curves(bench, browser, viewer, data, ours)
            with viewer.start(bench, data) as site, _page(browser) as page:
                restarted.append(viewer.see_curve(page, site, data))
        peers = {peer.name: _seen_by(bench, browser, peer, data) for peer in (TensorBoard(), MlflowUi())}
    yield from _rows(data, ours, peers)
    what, note = (
        f"curves of {data.rows:,} rows on screen, server restarted",
        "from the cache that a server before it left",
    )
    yield Row("V2", what, "s", restarted, target=Target("figure", "most", 1.0), note=note)


def _seen_by(bench: Bench, browser: Browser, peer: Viewer, data: Data) -> Seen:
    """What a peer shows of the same data, once; what it does not show in time stays empty."""
    seen = Seen()
    try:
        filled = peer.filled(bench, data)
        _see_list(bench, browser, peer, filled, seen)
        alone = replace(filled, trials=0)
        _see_curves(bench, browser, peer, alone if isinstance(peer, TensorBoard) else filled, seen)
    except MeasureError as error:
        print(f"  {peer.name}: {error}", file=sys.stderr)
    return seen


_LISTED = {
    TensorBoard.name: "both list all of them; ours after the line of the search was opened",
    MlflowUi.name: "it lists the first 100",
}
_DRAWN = {
    TensorBoard.name: "it draws 1,000 points of each curve; a server for this run alone",
    MlflowUi.name: "it draws 320 points of each curve",
}


def _rows(data: Data, ours: Seen, peers: dict[str, Seen]) -> Iterator[Row]:
    listed, curves = f"list of {data.trials:,} trials on screen, cold start", f"curves of {data.rows:,} rows on screen"
    three, one, half = Target("figure", "most", 3.0), Target("figure", "most", 1.0), Target("worst", "most", 500.0)
    for name, theirs in peers.items():
        yield Row("V1", listed, "s", ours.listed, name, theirs.listed, three, note=_LISTED[name])
    for name, theirs in peers.items():
        yield Row("V2", f"{curves}, first time", "s", ours.first, name, theirs.first, three, note=_DRAWN[name])
    for name, theirs in peers.items():
        yield Row("V2", f"{curves}, again", "s", ours.again, name, theirs.again, one, note=_DRAWN[name])
    for name, theirs in peers.items():
        yield Row("V4", "memory of the server", "MB", [max(ours.memory)], name, theirs.memory[:1], half)


def _cold(bench: Bench) -> Paceline:
    """A page that has never shown anything."""
    return Paceline(bench.scratch / f"cache-{next(_numbers)}")


def _see_list(bench: Bench, browser: Browser, viewer: Viewer, data: Data, seen: Seen) -> None:
    with viewer.start(bench, data) as site, _page(browser) as page:
        seen.listed.append(viewer.see_list(page, site, data))
        seen.memory.append(site.memory_mb())


def _see_curves(bench: Bench, browser: Browser, viewer: Viewer, data: Data, seen: Seen) -> None:
    with viewer.start(bench, data) as site:
        for times in (seen.first, seen.again):
            with _page(browser) as page:
                times.append(viewer.see_curve(page, site, data))
        seen.memory.append(site.memory_mb())


@contextmanager
def _page(browser: Browser) -> Iterator[Page]:
    page = chromium.open_page(browser)
    try:
        yield page
    finally:
        page.close()


def by_http(bench: Bench) -> Iterator[Row]:
    """The server's share: the same answers without a browser."""
    data = _data(bench)
    listed, first, again = list[float](), list[float](), list[float]()
    for _ in range(bench.repeats(5)):
        viewer = _cold(bench)
        with viewer.start(bench, data) as site:
            run = viewer.run_id(site, workload.LONG_RUN)
            listed.append(time.monotonic() - site.script.started)
            query = [("run", run), ("pixels", "1200"), *(("metric", name) for name in workload.METRICS)]
            for times in (first, again):
                began = time.monotonic()
                curves = site.get(f"/api/series?{urllib.parse.urlencode(query)}")
                times.append(time.monotonic() - began)
                if curves["rows"] != data.rows or len(curves["series"]) != len(workload.METRICS):
                    raise MeasureError(f"the server sent {curves['rows']} rows of {sorted(curves['series'])}")
    note = "the server's share, by HTTP"
    yield Row("V1", f"list of {data.trials:,} trials received, cold start", "s", listed, note=note)
    yield Row("V2", f"curves of {data.rows:,} rows received, first time", "s", first, note=note)
    yield Row("V2", f"curves of {data.rows:,} rows received, again", "s", again, note=note)


def live_rows(bench: Bench) -> Iterator[Row]:
    """From report() in a training process to the screen, beside all the other runs; and to the stream of a tab."""
    data, count = _data(bench), bench.repeats(LIVE_ROWS, 8)
    name = f"live-{next(_numbers)}"
    with bench.start(OURS / "live_run.py", name, str(data.root), str(count)) as script:
        script.wait_for_files(["reported"])
        viewer = _cold(bench)
        with viewer.start(bench, data) as site, chromium.chromium() as browser, _page(browser) as page:
            run = _until(lambda: viewer.run_id(site, name))
            streamed = _Streamed(site, run)
            page.goto(f"{site.url}/run/{run}?token={site.token}", wait_until="commit")
            chromium.seconds_until(page, f"{_READING} !== undefined", time.monotonic())
            page.evaluate(_WATCH)
            (script.place / "go").touch()
            script.wait_for_files(["sent.json"])
            chromium.seconds_until(page, f"{count} in window.seen", time.monotonic())
            on_page = {int(value): moment for value, moment in page.evaluate("window.seen").items()}
            _until(lambda: count in streamed.seen)
            sent = {
                int(value): moment for value, moment in json.loads((script.place / "sent.json").read_text()).items()
            }
        (script.place / "done").touch()
        script.finish()
    target = Target("worst", "most", 1.0)
    shown, received = _delays(sent, on_page), _delays(sent, streamed.seen)
    note = "TensorBoard's page and the MLflow UI's look every 30 s"
    yield Row("V3", "a new row of a live run on screen", "s", shown, target=target, note=note)
    yield Row("V3", "a new row of a live run received", "s", received, note="the server's share, by HTTP")


_READING = f"document.querySelector('.chart[data-metric={LIVE_METRIC}] .reading')?.textContent?.match(/^\\d+$/)?.[0]"
_WATCH = f"""() => {{
    window.seen = {{}};
    const look = () => {{
        const value = {_READING};
        if (value !== undefined && !(value in window.seen)) window.seen[value] = Date.now() / 1000;
        requestAnimationFrame(look);
    }};
    look();
}}"""
"""Notes when each value first stands beside the curve; the curve is drawn in the same frame."""


def _delays(sent: dict[int, float], seen: dict[int, float]) -> list[float]:
    """A row that came together with the next one was there when that was."""
    return [min(moment for value, moment in seen.items() if value >= number) - at for number, at in sent.items()]


class _Streamed:
    """The stream of a tab, read in a thread: when each row arrived."""

    def __init__(self, site: Site, run: str) -> None:
        self.seen: dict[int, float] = {}
        wish = [{"run": run, "metrics": [LIVE_METRIC], "x": "step", "smooth": 0, "cursor": 0}]
        query = urllib.parse.urlencode({"list": "", "series": json.dumps(wish)})
        headers = {"Authorization": f"Bearer {site.token}"}
        self._request = urllib.request.Request(f"{site.url}/api/live?{query}", headers=headers)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with urllib.request.urlopen(self._request, timeout=60) as stream:
            event = b""
            for line in stream:
                if line.startswith(b"event: "):
                    event = line[7:].strip()
                elif line.startswith(b"data: ") and event == b"rows":
                    for value in json.loads(line[6:])["series"].get(LIVE_METRIC, {"y": []})["y"]:
                        self.seen.setdefault(int(value), time.time())


def _until(found: Callable[[], T]) -> T:
    deadline = time.monotonic() + 60
    while not (value := found()):
        if time.monotonic() > deadline:
            raise MeasureError("the live run did not appear")
        time.sleep(0.05)
    return value
