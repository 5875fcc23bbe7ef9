"""An experiment on remote storage: mirrored as it goes, and continued from there by a machine that has nothing."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import tune
from paceline.air import Checkpoint, RunConfig, session
from paceline.air.errors import RestoreError
from paceline.tune import TuneConfig, Tuner
from tests.storage.s3_server import s3_filesystem, s3_server

pytest.importorskip("s3fs")
pytest.importorskip("moto")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    import s3fs

    with s3_server() as running:
        s3fs.S3FileSystem.clear_instance_cache()
        s3_filesystem(running).call_s3("create_bucket", Bucket="bucket")
        yield running
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def storage(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PACELINE_RESULTS_DIR": str(tmp_path / "results"),
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4().hex}"


def make_trainable(marks: Path) -> object:
    def squared(config: dict[str, int]) -> None:
        (marks / f"{config['a']}-{uuid.uuid4().hex}").touch()
        session.report({"x": config["a"] ** 2}, checkpoint=Checkpoint.from_dict({"a": config["a"]}))

    return squared


def test_an_experiment_is_continued_where_there_are_no_local_files(storage: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    squared = make_trainable(marks)
    first = Tuner(
        squared,
        param_space={"a": tune.grid_search([1, 2])},
        tune_config=TuneConfig(metric="x", mode="max", num_samples=1),
        run_config=RunConfig(name="searched", storage_path=storage, verbose=0),
    ).fit()
    assert first.experiment_path == f"{storage}/searched"
    shutil.rmtree(tmp_path / "results")

    assert Tuner.can_restore(f"{storage}/searched")
    again = Tuner.restore(
        f"{storage}/searched", squared, num_samples=2, run_config=RunConfig(storage_path=storage, verbose=0)
    ).fit()
    assert [result.metrics["x"] for result in again] == [1, 4, 1, 4]
    checkpoints = [result.checkpoint for result in again]
    assert [checkpoint.to_dict()["a"] for checkpoint in checkpoints if checkpoint] == [1, 2, 1, 2]
    assert sorted(mark.name.split("-")[0] for mark in marks.iterdir()) == ["1", "1", "2", "2"]


def test_a_place_without_an_experiment_is_refused(storage: str) -> None:
    assert not Tuner.can_restore(f"{storage}/nothing")
    with pytest.raises(RestoreError, match="holds no experiment"):
        Tuner.restore(f"{storage}/nothing", print)


def search(storage: str | None, marks: Path, values: list[int]) -> None:
    Tuner(
        make_trainable(marks),
        param_space={"a": tune.grid_search(values)},
        run_config=RunConfig(name="searched", storage_path=storage, verbose=0),
    ).fit()


def test_searches_of_the_same_name_in_two_places_do_not_mix(storage: str, tmp_path: Path) -> None:
    """The newest one must not be taken for the one that is restored."""
    for place, values in ((f"{storage}/a", [1]), (f"{storage}/b", [2, 3]), (None, [4, 5, 6])):
        search(place, tmp_path, values)
    for place, values in ((f"{storage}/a", [1]), (f"{storage}/b", [2, 3])):
        found = Tuner.restore(f"{place}/searched", make_trainable(tmp_path)).get_results()
        assert [result.metrics["x"] for result in found] == [value**2 for value in values]


def test_a_copied_search_is_continued_apart(storage: str, endpoint: str, tmp_path: Path) -> None:
    search(f"{storage}/a", tmp_path, [1])
    store, place = s3_filesystem(endpoint), storage.removeprefix("s3://")
    for name in store.find(f"{place}/a"):
        store.copy(name, name.replace(f"{place}/a", f"{place}/b"))
    counts = {"a": 3, "b": 2}
    for copy, samples in counts.items():
        Tuner.restore(
            f"{storage}/{copy}/searched", make_trainable(tmp_path), num_samples=samples, run_config=RunConfig(verbose=0)
        ).fit()
    for _ in range(2):
        for copy, samples in counts.items():
            found = Tuner.restore(f"{storage}/{copy}/searched", make_trainable(tmp_path)).get_results()
            assert len(found) == samples
        shutil.rmtree(tmp_path / "results")  # what is in the store has not been mixed, either
