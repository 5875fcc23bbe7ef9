"""The three viewers: paceline's page, TensorBoard and the MLflow UI. How each starts, and when it shows something."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import chromium, processes
from benchmarks import view_workload as workload
from benchmarks.harness import PEERS, Bench, MeasureError, Script
from benchmarks.viewer_venv import viewer_bin

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_S = 300.0


@dataclass(frozen=True)
class Data:
    """The runs that all viewers are shown."""

    trials: int
    rows: int
    root: Path
    """Directories of runs, with event files for TensorBoard."""
    mlflow: dict[str, Any] = field(default_factory=dict)
    """What MLflow calls them, once they are in its database."""


@dataclass(frozen=True)
class Site:
    """A viewer's server that answers."""

    script: Script
    url: str
    token: str = ""

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=PATIENCE_S) as it:
            return json.loads(it.read())

    def memory_mb(self) -> float:
        """Of all its processes."""
        return processes.proportional_mb(processes.tree(self.script.process.pid))


class Viewer(ABC):
    """One of them. A page that is given to its methods has a memory of its own."""

    name: str

    def filled(self, bench: Bench, data: Data) -> Data:
        """The same data, once this viewer has them in the form that it reads."""
        return data

    @abstractmethod
    def start(self, bench: Bench, data: Data) -> AbstractContextManager[Site]: ...

    @abstractmethod
    def see_list(self, page: Page, site: Site, data: Data) -> float:
        """Seconds from the start of the server's process until the list of trials is on the screen."""

    @abstractmethod
    def see_curve(self, page: Page, site: Site, data: Data) -> float:
        """Seconds from opening the page of the long run until its curves are on the screen."""


class Paceline(Viewer):
    """`paceline dash`."""

    name = "paceline dash"

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        """Empty: as for somebody who has never looked at these runs."""

    @contextmanager
    def start(self, bench: Bench, data: Data) -> Iterator[Site]:
        command = [sys.executable, "-m", "paceline.cli.main", "dash", str(data.root), "--port", "0", "--no-open"]
        with bench.start_command(command, {"XDG_CACHE_HOME": str(self._cache)}) as script:
            url, token = _printed(script, r"(http://[\d.:]+)/\?token=(\S+)").groups()
            yield Site(script, url, token)

    def see_list(self, page: Page, site: Site, data: Data) -> float:
        """The search is one line of the list: it is opened, and timed until its trials are on the screen."""
        page.goto(f"{site.url}/?token={site.token}", wait_until="commit")
        page.locator(".row.search .caret").first.click()
        return chromium.seconds_until(page, _all_listed(data.trials), site.script.started)

    def see_curve(self, page: Page, site: Site, data: Data) -> float:
        run = self.run_id(site, workload.LONG_RUN)
        began = time.monotonic()
        page.goto(f"{site.url}/run/{run}?token={site.token}", wait_until="commit")
        return chromium.seconds_until(page, _all_drawn(workload.METRICS), began)

    def run_id(self, site: Site, name: str) -> str:
        """What the page calls a run."""
        listed = site.get("/api/list")
        entries = (dict(zip(listed["columns"], row, strict=True)) for row in listed["rows"])
        return next((str(each["id"]) for each in entries if each["kind"] == "run" and each["name"] == name), "")


def _all_listed(trials: int) -> str:
    """Only those on the screen are in the document; the table knows how many there are."""
    count = "Number(document.querySelector('.table')?.getAttribute('aria-rowcount'))"
    return f"document.querySelector('.row.trial[data-id]') !== null && {count} >= {trials}"


def _all_drawn(metrics: tuple[str, ...]) -> str:
    points = "Number(document.querySelector(`.chart[data-metric=${name}] .plot`)?.dataset.points)"
    return f"{json.dumps(metrics)}.every(name => {points} > 0)"


class TensorBoard(Viewer):
    """With its fast data server, as it comes."""

    name = "TensorBoard"

    @contextmanager
    def start(self, bench: Bench, data: Data) -> Iterator[Site]:
        root = str(data.root if data.trials else data.root / workload.LONG_RUN)
        command = [str(viewer_bin() / "tensorboard"), "--logdir", root, "--host", "127.0.0.1", "--port", "0"]
        with bench.start_command(command) as script:
            yield Site(script, _printed(script, r"TensorBoard \S+ at (http://[\d.:]+)/").group(1))

    def see_list(self, page: Page, site: Site, data: Data) -> float:
        """Its server finds the runs one by one, and an open page does not notice: opened when all are found."""
        deadline = time.monotonic() + PATIENCE_S
        while len(site.get("/data/runs")) < data.trials:
            if time.monotonic() > deadline:
                raise MeasureError("TensorBoard did not find all runs")
            time.sleep(0.05)
        page.goto(f"{site.url}/#timeseries", wait_until="commit")
        shown = "document.querySelector('tb-data-table-content-row') !== null"
        return chromium.seconds_until(page, shown, site.script.started)

    def see_curve(self, page: Page, site: Site, data: Data) -> float:
        """Opened again as long as its server has not read the whole run."""
        began = time.monotonic()
        while True:
            page.goto(f"{site.url}/#timeseries", wait_until="commit")
            seconds = chromium.seconds_until(page, f"document.querySelector('{_TICKS}') !== null", began)
            if self._last_step(page) >= 0.7 * data.rows:
                return seconds
            page.goto("about:blank")

    def _last_step(self, page: Page) -> float:
        """The largest number beside an axis."""
        texts = page.evaluate(f"[...document.querySelectorAll('{_TICKS}')].map(tick => tick.textContent)")
        found = [re.fullmatch(r"\s*([\d.]+)([kM]?)\s*", text) for text in texts]
        return max((float(each[1]) * _UNITS[each[2]] for each in found if each is not None), default=0.0)


_TICKS = "scalar-card line-chart-axis text"
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6}


class MlflowUi(Viewer):
    """`mlflow server` with SQLite, one worker, and without its job runners, which would compete for the cores."""

    name = "MLflow UI"

    def filled(self, bench: Bench, data: Data) -> Data:
        arguments = [str(self._database(bench)), str(data.trials), str(data.rows)]
        command = [str(viewer_bin() / "python"), str(PEERS / "mlflow_data.py"), *arguments]
        with bench.start_command(command, _MLFLOW) as script:
            return Data(data.trials, data.rows, data.root, script.finish(timeout=1800).data)

    @contextmanager
    def start(self, bench: Bench, data: Data) -> Iterator[Site]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = str(listening.getsockname()[1])
        command = [str(viewer_bin() / "mlflow"), "server", "--backend-store-uri", f"sqlite:///{self._database(bench)}"]
        command += ["--host", "127.0.0.1", "--port", port, "--workers", "1"]
        path = f"{viewer_bin()}{os.pathsep}{os.environ['PATH']}"
        with bench.start_command(command, {**_MLFLOW, "PATH": path}) as script:
            site = Site(script, f"http://127.0.0.1:{port}")
            _wait_until_up(site)
            yield site

    def see_list(self, page: Page, site: Site, data: Data) -> float:
        page.goto(f"{site.url}/#/experiments/{data.mlflow['experiments'][workload.SEARCH]}/runs", wait_until="commit")
        shown = "document.body?.innerText.includes('trial_')"
        return chromium.seconds_until(page, shown, site.script.started)

    def see_curve(self, page: Page, site: Site, data: Data) -> float:
        began = time.monotonic()
        experiment, run = data.mlflow["experiments"][workload.LONG_RUN], data.mlflow["run"]
        page.goto(f"{site.url}/#/experiments/{experiment}/runs/{run}/model-metrics", wait_until="commit")
        drawn = "document.querySelector('.js-plotly-plot .scatterlayer .trace path') !== null"
        return chromium.seconds_until(page, drawn, began)

    def _database(self, bench: Bench) -> Path:
        return bench.scratch / "mlflow.db"


_MLFLOW: Mapping[str, str] = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def _printed(script: Script, pattern: str) -> re.Match[str]:
    """What a server prints when it listens."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := re.search(pattern, script.log_tail())) is None:
        if script.process.poll() is not None or time.monotonic() > deadline:
            raise MeasureError(f"the server did not start:\n{script.log_tail()}")
        time.sleep(0.005)
    return found


def _wait_until_up(site: Site) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"{site.url}/health", timeout=10):
                return
        except OSError:
            if site.script.process.poll() is not None or time.monotonic() > deadline:
                raise MeasureError(f"the server did not start:\n{site.script.log_tail()}") from None
        time.sleep(0.05)
