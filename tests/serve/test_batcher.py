"""Requests that wait together are predicted together, and none suffers from another."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from paceline.data.preprocessors import BatchMapper
from paceline.serve.limits import Limits
from tests.serve.serving import Gated, Server, serving
from tests.web.client import Answer, until


@contextmanager
def busy(
    model: Gated | None = None, **limits: Any
) -> Iterator[tuple[Server, Gated, ThreadPoolExecutor, Future[Answer]]]:
    """A server whose model is in the middle of a first prediction, and stays there until its gate is opened."""
    model = model or Gated()
    with serving(model, **limits) as server, ThreadPoolExecutor(32) as clients:
        model.gate.clear()
        first = clients.submit(server.predict, [{"x": 0}])
        try:
            assert model.entered.acquire(timeout=30)
            yield server, model, clients, first
        finally:
            model.gate.set()


def send(server: Server, clients: ThreadPoolExecutor, bodies: list[Any]) -> list[Future[Answer]]:
    """Send requests one after the other, so that they wait in this order."""
    before, sent = server.waiting, []
    for number, body in enumerate(bodies):
        sent.append(clients.submit(server.predict, body))
        until(lambda number=number: server.waiting == before + number + 1)  # type: ignore[misc]
    return sent


def predictions(answer: Future[Answer]) -> list[float]:
    result: list[float] = answer.result().json["predictions"]
    return result


def test_what_waits_is_one_batch_and_each_gets_its_own_rows() -> None:
    with busy() as (server, model, clients, first):
        bodies = [[{"x": 10 * number + row} for row in range(number + 1)] for number in range(8)]
        waiting = send(server, clients, bodies)
        model.gate.set()
        assert predictions(first) == [0]
        for number, answer in enumerate(waiting):
            assert predictions(answer) == [10.0 * (10 * number + row) for row in range(number + 1)]
        assert model.sizes == [1, 36]


def test_a_batch_is_not_larger_than_allowed_but_one_request_is_never_cut() -> None:
    with busy(max_batch_size=4) as (server, model, clients, _):
        waiting = send(server, clients, [[{"x": 1}] * size for size in (2, 2, 1, 9, 1)])
        model.gate.set()
        assert [len(predictions(answer)) for answer in waiting] == [2, 2, 1, 9, 1]
        assert model.sizes == [1, 4, 1, 9, 1]


def test_only_requests_of_the_same_form_go_together() -> None:
    with busy() as (server, model, clients, _):
        waiting = send(server, clients, [[{"x": 1}], [{"x": 2}], [{"x": 3, "y": "text"}], [{"x": 4.5}], [{"x": 5.5}]])
        model.gate.set()
        assert [predictions(answer) for answer in waiting] == [[10], [20], [30], [45], [55]]
        assert model.sizes == [1, 2, 1, 2]


def test_a_full_batch_does_not_wait_for_more() -> None:
    model = Gated()
    with serving(model, max_wait_ms=20_000, max_batch_size=3) as server, ThreadPoolExecutor(3) as clients:
        answers = [clients.submit(server.predict, [{"x": number}]) for number in range(3)]
        assert [predictions(answer) for answer in answers] == [[0], [10], [20]]
        assert model.sizes == [3]


def test_a_request_waits_for_others_as_long_as_told() -> None:
    model = Gated()
    with serving(model, max_wait_ms=50) as server:
        assert server.predict([{"x": 1}]).json == {"predictions": [10]}


def test_one_bad_request_does_not_fail_those_that_wait_with_it(caplog: pytest.LogCaptureFixture) -> None:
    with busy() as (server, model, clients, _), caplog.at_level(logging.ERROR, "paceline.serve"):
        waiting = send(server, clients, [[{"x": 1}], [{"x": -1}], [{"x": 3}]])
        model.gate.set()
        assert (predictions(waiting[0]), predictions(waiting[2])) == ([10], [30])
        bad = waiting[1].result()
        assert bad.status == 500
        assert "negative" not in bad.body.decode()
        assert "Traceback" not in bad.body.decode()
        (record,) = caplog.records
        assert bad.json["id"] in record.getMessage()
        assert "negative" in str(record.exc_info)


def test_a_preprocessor_that_leaves_rows_out_does_not_mix_up_answers() -> None:
    model = Gated()
    model.set_preprocessor(BatchMapper(lambda frame: frame.dropna(), "pandas"))
    with busy(model) as (server, _, clients, first):
        waiting = send(server, clients, [[{"x": 1.5}, {"x": None}], [{"x": 2.5}, {"x": 3.5}]])
        model.gate.set()
        refused, kept = waiting
        assert (refused.result().status, refused.result().reason[:34]) == (422, "BatchMapper made 1 rows of 2: pred")
        assert [predictions(answer) for answer in (first, kept)] == [[0], [25, 35]]


class Careless(Gated):
    """Does not go by the rules of Predictor: what is missing is left out of the answer."""

    def predict(self, data: Any, **kwargs: Any) -> Any:
        return super().predict(data, **kwargs).dropna()


def test_answers_that_lack_rows_do_not_mix_up_answers() -> None:
    with busy(Careless()) as (server, model, clients, _):
        waiting = send(server, clients, [[{"x": 1.5}, {"x": None}], [{"x": 2.5}, {"x": 3.5}]])
        model.gate.set()
        assert waiting[0].result().status == 500
        assert predictions(waiting[1]) == [25, 35]


def test_beyond_the_queue_clients_are_told_to_come_back() -> None:
    with busy(max_waiting=2) as (server, model, clients, first):
        waiting = send(server, clients, [[{"x": 1}], [{"x": 2}]])
        refused = server.predict([{"x": 3}])
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        model.gate.set()
        assert [predictions(answer) for answer in (first, *waiting)] == [[0], [10], [20]]


def test_bodies_that_are_held_have_a_limit_together() -> None:
    with busy(max_held_bytes=100) as (server, model, clients, first):
        waiting = send(server, clients, [[{"x": 1, "pad": "-" * 40}]])
        refused = server.predict([{"x": 2, "pad": "-" * 40}])
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        model.gate.set()
        assert [answer.result().status for answer in (first, *waiting)] == [200, 200]
        assert server.predict([{"x": 2, "pad": "-" * 40}]).status == 200


def test_one_body_of_the_largest_size_is_always_taken() -> None:
    assert Limits(max_body_bytes=1 << 30).held_bytes == 1 << 30


def test_a_prediction_that_takes_too_long_is_given_up_and_the_rest_goes_on() -> None:
    with busy(request_timeout_s=0.3) as (server, model, clients, first):
        waiting = send(server, clients, [[{"x": 1}]])
        for late in (first, *waiting):
            assert (late.result().status, late.result().reason) == (504, "There was no prediction within 0.3 s.")
        model.gate.set()
        assert server.predict([{"x": 2}]).json == {"predictions": [20]}
        assert model.sizes == [1, 1], "what nobody waits for any more was predicted"


def test_rows_of_clients_that_left_are_not_predicted() -> None:
    with busy() as (server, model, clients, first):
        body = b'[{"x": 5}]'
        left = server.connect()
        left.sendall(server.head(len(body)) + body)
        until(lambda: server.waiting == 1)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close by a reset
        left.close()
        stays = send(server, clients, [[{"x": 6}, {"x": 7}]])
        until(lambda: server.waiting == 2)
        model.gate.set()
        assert predictions(first) == [0]
        assert predictions(stays[0]) == [60, 70]
        assert model.sizes == [1, 2]
