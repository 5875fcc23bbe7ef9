"""GET /metrics of a model's server, read back with Prometheus' own parser."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline import serve
from tests.serve.serving import JSON, Gated, Server, Times, serving
from tests.web.client import until

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(server: Server) -> Series:
    """Each series and its value."""
    answer = server.ask("GET", "/metrics")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.body.decode()))
    assert all(family.documentation for family in families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Times()) as running:
        yield running


def test_requests_by_route_method_and_status(server: Server) -> None:
    for _ in range(3):
        assert server.predict([{"x": 1}]).status == 200
    assert server.predict(b"not JSON").status == 400
    assert server.ask("POST", "/predict", b"[]", JSON, token=None).status == 401
    assert server.ask("GET", "/predict").status == 405
    assert server.ask("GET", "/healthz", token=None).status == 200
    series = scraped(server)

    def requests(route: str, method: str, status: int) -> float:
        return value(series, "paceline_http_requests_total", route=route, method=method, status=str(status))

    assert requests("/predict", "POST", 200) == 3
    assert requests("/predict", "POST", 400) == 1
    assert requests("/predict", "POST", 401) == 1
    assert requests("/predict", "GET", 405) == 1
    assert requests("/healthz", "GET", 200) == 1


def test_paths_that_clients_invent_make_one_series(server: Server) -> None:
    for number in range(20):
        assert server.ask("GET", f'/made-up"\\{number}').status == 404
    assert server.ask("TRACE", "/model").status == 405
    routes = {dict(labels)["route"] for name, labels in scraped(server) if name == "paceline_http_requests_total"}
    assert routes == {"/model", "other"}
    methods = {dict(labels)["method"] for name, labels in scraped(server) if name == "paceline_http_requests_total"}
    assert methods == {"GET", "other"}


def test_how_long_answers_took(server: Server) -> None:
    for _ in range(4):
        server.predict([{"x": 1}])
    series = scraped(server)
    name = "paceline_http_request_seconds"
    assert value(series, f"{name}_count", route="/predict") == 4
    assert 0 < value(series, f"{name}_sum", route="/predict") < 4 * 30
    buckets = [
        (float(dict(labels)["le"]), count)
        for (series_name, labels), count in series.items()
        if series_name == f"{name}_bucket" and dict(labels)["route"] == "/predict"
    ]
    assert buckets == sorted(buckets)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == (math.inf, 4)


def test_rows_batches_and_what_waits() -> None:
    model = Gated()
    with serving(model) as server, ThreadPoolExecutor(4) as others:
        model.gate.clear()
        first = others.submit(server.predict, [{"x": 1}])
        assert model.entered.acquire(timeout=30)
        behind = [others.submit(server.predict, [{"x": 2}, {"x": 3}]) for _ in range(3)]
        until(lambda: server.waiting == 3)
        series = scraped(server)
        assert value(series, "paceline_serve_waiting_requests") == 3
        assert value(series, "paceline_serve_waiting_rows") == 6
        assert value(series, "paceline_serve_rows_total") == 0
        assert value(series, "paceline_http_connections") >= 5  # of those four and the scrape
        model.gate.set()
        assert [asked.result().status for asked in (first, *behind)] == [200] * 4
        assert server.predict([{"x": -1}]).status == 500
        series = scraped(server)
    assert value(series, "paceline_serve_waiting_requests") == 0
    assert value(series, "paceline_serve_rows_total") == 7
    assert value(series, "paceline_serve_batch_rows_count") == 3  # 1, then 6 together, then the one that failed
    assert value(series, "paceline_serve_batch_rows_sum") == 8
    assert value(series, "paceline_serve_batch_rows_bucket", le="4.0") == 2
    assert value(series, "paceline_serve_batch_seconds_count") == 3


def factor_checkpoint(path: Path, factor: Any) -> str:
    path.mkdir()
    (path / "factor.json").write_text(json.dumps(factor))
    return str(path)


def test_the_model_and_its_reloads(tmp_path: Path) -> None:
    first = factor_checkpoint(tmp_path / 'a "quoted"\nname', 2.0)
    second = factor_checkpoint(tmp_path / "second", 3.0)
    broken = factor_checkpoint(tmp_path / "broken", "not a number")
    running = serve.run(Times, first, port=0, blocking=False, name="times")
    assert running is not None
    with running:
        server = Server(running)
        assert server.predict([{"x": 1}]).status == 200
        series = scraped(server)
        (labels,) = (dict(labels) for name, labels in series if name == "paceline_serve_model_info")
        assert (labels["name"], labels["predictor"]) == ("times", "Times")
        assert labels["checkpoint"].endswith('a "quoted"\N{REPLACEMENT CHARACTER}name')
        age = value(series, "paceline_serve_model_age_seconds")
        assert 0 <= age < 3600
        assert value(series, "paceline_serve_reloads_total") == 0
        running.reload(second)
        for bad in (broken, str(tmp_path / "not there")):
            with pytest.raises(Exception, match=r"broken|not there"):
                running.reload(bad)
        assert server.ask("POST", "/reload", b'{"checkpoint": 7}').status == 422
        series = scraped(server)
        assert value(series, "paceline_serve_reloads_total") == 1
        assert value(series, "paceline_serve_failed_reloads_total") == 3


def test_the_process_and_the_version(server: Server) -> None:
    series = scraped(server)
    assert value(series, "process_resident_memory_bytes") > 1 << 20
    assert value(series, "process_open_fds") > 3
    assert any(name == "paceline_info" for name, _ in series)


def test_two_servers_of_one_process_count_for_themselves() -> None:
    with serving(Times()) as one, serving(Times()) as another:
        one.predict([{"x": 1}])
        assert value(scraped(one), "paceline_serve_rows_total") == 1
        assert value(scraped(another), "paceline_serve_rows_total") == 0


def test_the_description_has_the_route(server: Server) -> None:
    operation = server.ask("GET", "/openapi.json").json["paths"]["/metrics"]["get"]
    assert "text/plain" in operation["responses"]["200"]["content"]
    assert b"GET /metrics" in server.ask("GET", "/docs").body


def test_many_scrape_at_once(server: Server) -> None:
    with ThreadPoolExecutor(8) as others:
        for answer in others.map(lambda _: server.ask("GET", "/metrics").status, range(40)):
            assert answer == 200


def test_only_a_scrape_imports_the_client_library() -> None:
    code = "import sys, paceline.serve.application; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_without_the_client_library_the_answer_names_the_extra(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # what Python takes for "not installed"
    answer = server.ask("GET", "/metrics")
    assert answer.status == 501
    assert "paceline[serve]" in answer.reason
