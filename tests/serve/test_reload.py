"""Changing the model while it serves: nothing is dropped, and what fails leaves the old one in its place."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline import serve, train
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError, RestoreError
from paceline.serve import application
from paceline.serve.model import Recipe, ReloadUnderWayError, ServedModel
from paceline.serve.origin import RunOrigin, origin_of
from paceline.serve.server import RunningServer
from paceline.train import DataParallelTrainer, TrainingFailedError
from tests.serve.serving import Server, Times
from tests.web.client import until


def factor_checkpoint(path: Path, factor: Any) -> Path:
    path.mkdir()
    (path / "factor.json").write_text(json.dumps(factor))
    return path


def start(what: Any, **settings: Any) -> RunningServer:
    running = serve.run(Times, what, port=0, blocking=False, **settings)
    assert running is not None
    return running


def report_factors(config: dict[str, Any]) -> None:
    for factor, score in config["rows"]:
        if factor is None:
            raise RuntimeError("no more factors")
        folder = Path(f"factor_{factor}")
        factor_checkpoint(folder, factor)
        train.report({"score": score}, checkpoint=Checkpoint.from_directory(str(folder)))


def a_run(name: str, rows: list[tuple[float, float]], attribute: str | None = None) -> str:
    """The directory of a run that kept a checkpoint for each factor."""
    trainer = DataParallelTrainer(
        report_factors,
        train_loop_config={"rows": rows},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name=name, engine="inline", checkpoint_config=CheckpointConfig(checkpoint_score_attribute=attribute)
        ),
    )
    return trainer.fit().path


@pytest.fixture
def run_path() -> str:
    return a_run("served", [(2.0, 0.1), (3.0, 0.9), (4.0, 0.5)])


def value(server: Server) -> float:
    answer = server.predict([{"x": 1}])
    assert answer.status == 200, answer.body
    (prediction,) = answer.json["predictions"]
    return float(prediction)


def test_the_newest_checkpoint_of_a_run_and_others_by_number(run_path: str) -> None:
    with start(run_path) as running:
        server = Server(running)
        assert value(server) == 4.0
        assert server.ask("POST", "/reload", b'{"checkpoint": 0}').json["number"] == 0
        assert value(server) == 2.0
        assert server.ask("POST", "/reload").json["number"] == 2
        assert value(server) == 4.0
        missing = server.ask("POST", "/reload", b'{"checkpoint": 7}')
        assert (missing.status, missing.reason.endswith("0, 1, 2.")) == (422, True)


def test_the_best_checkpoint_where_the_run_has_a_score(results_dir: Path) -> None:
    path = a_run("scored", [(2.0, 0.1), (3.0, 0.9), (4.0, 0.5)], attribute="score")
    for place in (path, str(Path(path).parent)):  # the run, the experiment
        with start(place) as running:
            assert value(Server(running)) == 3.0
    assert RunOrigin(path, chosen=0).checkpoint(None).number == 0


def test_of_an_experiment_the_newest_run_that_has_a_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    older = a_run("several", [(2.0, 0.1)])
    newer = a_run("several", [])
    assert Path(older).parent == Path(newer).parent
    with start(str(Path(older).parent)) as running:
        assert value(Server(running)) == 2.0
    assert re.search(f"{re.escape(newer)}.*{re.escape(older)}", caplog.text)
    with pytest.raises(RestoreError, match="no checkpoint"):
        start(newer)


def test_a_run_that_failed_is_served_with_a_remark(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TrainingFailedError):
        a_run("failing", [(2.0, 0.1), (None, 0.2)])  # type: ignore[list-item]
    (path,) = Path(os.environ["PACELINE_RESULTS_DIR"], "failing").glob("*/")
    with start(str(path)) as running:
        assert value(Server(running)) == 2.0
    assert f"{path} failed" in caplog.text


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves one checkpoint; nothing that is refused changes it."""
    with start(factor_checkpoint(tmp_path_factory.mktemp("places") / "two", 2.0)) as running:
        yield Server(running)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"checkpoint": "/etc"}', 422),
        (b'{"checkpoint": "../other"}', 422),
        (b'{"checkpoint": true}', 422),
        (b'{"path": "/etc"}', 422),
        (b'"/etc"', 422),
        (b"{", 400),
        (b"[" * 4000, 400),
        (b" " * 5000, 413),
    ],
)
def test_a_client_cannot_name_a_place(of_two: Server, body: bytes, status: int) -> None:
    assert of_two.ask("POST", "/reload", body).status == status
    assert value(of_two) == 2.0


def test_a_reload_under_load_drops_nothing(tmp_path: Path) -> None:
    """Every request is answered, by the old model or the new one, and after the reload by the new one."""
    places = [factor_checkpoint(tmp_path / f"of_{factor}", float(factor)) for factor in (1, 2, 3, 4)]
    with start(places[0]) as running, ThreadPoolExecutor(8) as clients:
        server = Server(running)
        stopped = threading.Event()

        def load() -> Iterator[tuple[int, float]]:
            while not stopped.is_set():
                answer = server.predict([{"x": 1.0}, {"x": 10.0}])
                first, second = answer.json["predictions"]
                assert second == 10 * first
                yield answer.status, first

        loads = [clients.submit(lambda: list(load())) for _ in range(8)]
        for factor, place in list(enumerate(places, 1))[1:]:
            running.reload(place)
            for _ in range(20):
                assert value(server) == factor
        stopped.set()
        for each in loads:
            seen = each.result()
            assert {status for status, _ in seen} == {200}
            factors = [factor for _, factor in seen]
            assert factors == sorted(factors)
            assert set(factors) <= {1.0, 2.0, 3.0, 4.0}


def test_a_checkpoint_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    """S12."""
    with start(factor_checkpoint(tmp_path / "good", 2.0)) as running:
        server = Server(running)
        assert value(server) == 2.0
        with pytest.raises(json.JSONDecodeError):
            running.reload(_damaged(factor_checkpoint(tmp_path / "damaged", 3.0)))
        with pytest.raises(CheckpointError, match=r"useless.*rows that the model before"):
            running.reload(factor_checkpoint(tmp_path / "useless", {"no": "number"}))
        with pytest.raises(ConfigError, match="/nowhere"):
            running.reload(tmp_path / "nowhere")
        assert value(server) == 2.0
        running.reload(factor_checkpoint(tmp_path / "better", 5.0))
        assert value(server) == 5.0
        assert server.ask("POST", "/reload").status == 200  # from the new place now
        assert value(server) == 5.0


def _damaged(path: Path) -> Path:
    (path / "factor.json").write_text("{")
    return path


def test_a_checkpoint_that_was_altered_is_not_loaded(run_path: str) -> None:
    with start(run_path) as running:
        server = Server(running)
        altered = Path(run_path, "checkpoint_000000", "factor.json")
        altered.write_text("9.9")
        answer = server.ask("POST", "/reload", b'{"checkpoint": 0}')
        assert answer.status == 422
        assert "CheckpointCorruptError" in answer.reason
        assert value(server) == 4.0
    with pytest.raises(CheckpointCorruptError):
        start(origin_of(run_path).checkpoint(0))


def test_one_reload_at_a_time(tmp_path: Path) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Slow(Times):
        @classmethod
        def from_checkpoint(cls, checkpoint: Checkpoint) -> Times:
            entered.set()
            assert gate.wait(30)
            return super().from_checkpoint(checkpoint)

    gate.set()
    running = serve.run(Slow, factor_checkpoint(tmp_path / "one", 2.0), port=0, blocking=False)
    assert running is not None
    with running, ThreadPoolExecutor(1) as other:
        server = Server(running)
        gate.clear()
        entered.clear()
        first = other.submit(server.ask, "POST", "/reload")
        assert entered.wait(30)
        second = server.ask("POST", "/reload")
        assert (second.status, "reload" in second.reason) == (409, True)
        assert value(server) == 2.0  # while the new one is being loaded
        gate.set()
        assert first.result().status == 200


def test_a_run_can_be_followed(run_path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(application, "FOLLOW_SECONDS", 0.02)
    experiment = str(Path(run_path).parent)
    with start(experiment, follow=True) as running:
        server = Server(running)
        assert value(server) == 4.0
        a_run("served", [(6.0, 0.0)])  # the newest run of the experiment is followed
        until(lambda: value(server) == 6.0)
    with pytest.raises(ConfigError, match="run in a local directory"):
        start(factor_checkpoint(tmp_path / "single", 1.0), follow=True)


def test_what_came_while_the_first_model_was_loaded_is_followed(run_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "FOLLOW_SECONDS", 0.02)
    loaded = Recipe.load

    def slowly(self: Recipe, checkpoint: Checkpoint) -> Any:
        monkeypatch.setattr(Recipe, "load", loaded)
        model = loaded(self, checkpoint)
        a_run("served", [(6.0, 0.0)])
        return model

    monkeypatch.setattr(Recipe, "load", slowly)
    with start(str(Path(run_path).parent), follow=True) as running:
        until(lambda: value(Server(running)) == 6.0)


def test_a_change_during_a_reload_by_request_is_not_lost(run_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "FOLLOW_SECONDS", 0.02)
    followed, refused = ServedModel.follow, []

    def busy_at_first(served: ServedModel) -> None:
        if not refused:
            refused.append("once")
            raise ReloadUnderWayError
        followed(served)

    with start(str(Path(run_path).parent), follow=True) as running:
        monkeypatch.setattr(ServedModel, "follow", busy_at_first)
        a_run("served", [(6.0, 0.0)])
        until(lambda: value(Server(running)) == 6.0)
        assert refused


def test_places_that_hold_nothing_to_serve(tmp_path: Path, results_dir: Path) -> None:
    with pytest.raises(ConfigError, match="/nowhere"):
        start(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"result\.checkpoint"):
        start(train.Result())
    with pytest.raises(ConfigError, match=r"serve\.run\(PredictorClass, checkpoint\)"):
        serve.run(Times, port=0, blocking=False)
    with pytest.raises(ConfigError, match="/plain"):
        serve.run(factor_checkpoint(tmp_path / "plain", 1.0), port=0, blocking=False)
    with pytest.raises(RestoreError, match=r"/empty/.*no checkpoint"):
        start(a_run("empty", []))


def test_a_predictor_that_was_made_already_cannot_be_reloaded() -> None:
    running = serve.run(Times(2.0), port=0, blocking=False)
    assert running is not None
    with running:
        server = Server(running)
        assert value(server) == 2.0
        assert server.ask("POST", "/reload").status == 422


def test_a_checkpoint_at_a_uri(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(str(factor_checkpoint(tmp_path / "one", 2.0)))
    uri = checkpoint.to_uri("memory://models/one")
    with start(uri) as running:
        server = Server(running)
        assert value(server) == 2.0
        assert server.ask("GET", "/model").json["checkpoint"] == "memory://models/one"


def test_checkpoints_of_a_run_at_a_uri_are_compared_with_their_manifests(run_path: str, memory: Any) -> None:
    memory.put(run_path, "/runs/one", recursive=True)
    with start("memory://runs/one") as running:
        server = Server(running)
        assert value(server) == 4.0
        memory.pipe_file("/runs/one/checkpoint_000000/factor.json", b"9.9")
        answer = server.ask("POST", "/reload", b'{"checkpoint": 0}')
        assert answer.status == 422
        assert "CheckpointCorruptError: memory://runs/one/checkpoint_000000" in answer.reason
        assert value(server) == 4.0
        assert server.ask("POST", "/reload", b'{"checkpoint": 1}').status == 200
        assert value(server) == 3.0
