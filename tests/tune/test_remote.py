"""An experiment on remote storage: mirrored as it goes, and continued from there by a machine that has nothing."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, RunConfig, session
from paceline.air.errors import RestoreError, RunLockedError, StorageError
from paceline.run.callbacks import Callback
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.lease import Lease
from paceline.storage.lock import RunLock
from paceline.storage.mirror import Mirror
from paceline.tune import ResultGrid, TuneConfig, Tuner
from paceline.tune.experiment import experiment, files
from paceline.tune.experiment.files import RemoteCopy
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


def test_a_store_that_goes_out_of_reach_at_the_start_is_named(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_release = Lease.release

    def out_of_reach(*_: object) -> None:
        raise StorageError("the store is out of reach")

    def release(lease: Lease) -> None:
        really_release(lease)
        out_of_reach()

    monkeypatch.setattr(files, "fetch_journal", out_of_reach)
    monkeypatch.setattr(Lease, "release", release)
    with pytest.raises(StorageError, match="out of reach"):
        search(storage, tmp_path, [1])


def test_a_store_that_is_out_of_reach_leaves_no_lock(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_reach(store: FsspecFilesystem) -> None:
        raise StorageError("the store is out of reach")

    monkeypatch.setattr(FsspecFilesystem, "check", out_of_reach)
    with pytest.raises(StorageError, match="out of reach"):
        search(storage, tmp_path, [1])
    (lock,) = (tmp_path / "results" / "searched").glob("experiment-*.lock")
    with RunLock(lock):
        pass


def test_a_store_that_does_not_answer_is_not_waited_for_after_an_interrupt(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, waited_out = threading.Event(), []
    monkeypatch.setattr(experiment, "STORE_WAIT_S", 0.01)
    monkeypatch.setattr(experiment, "LEAST_STORE_WAIT_S", 0.01)

    def hang(*_: object, **__: object) -> None:
        if not over.wait(20):
            waited_out.append(True)

    def interrupt() -> None:
        monkeypatch.setattr(Mirror, "push_state", hang)
        monkeypatch.setattr(RemoteCopy, "upload", hang)
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            search_during(storage, tmp_path, interrupt)
        assert waited_out == []
    finally:
        over.set()


def test_a_place_without_an_experiment_is_refused(storage: str) -> None:
    assert not Tuner.can_restore(f"{storage}/nothing")
    with pytest.raises(RestoreError, match=r"/nothing does not exist"):
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


@pytest.mark.slow
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


class During(Callback):
    """Does one thing after the other, each when a trial reports."""

    def __init__(self, actions: list[Callable[[], object]]) -> None:
        self._actions = actions

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self._actions.pop(0)()


@pytest.fixture
def wait_for_upload(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits until the journal was uploaded, or was to be, after the end of the first trial."""
    over, upload = threading.Event(), RemoteCopy.upload

    def uploading(remote: RemoteCopy) -> None:
        upload(remote)
        over.set()

    def wait() -> None:
        assert over.wait(60)

    monkeypatch.setattr(RemoteCopy, "upload", uploading)
    return wait


def search_during(storage: str, marks: Path, *actions: Callable[[], object]) -> ResultGrid:
    return Tuner(
        make_trainable(marks),
        param_space={"a": tune.grid_search([1, 2])},
        tune_config=TuneConfig(max_concurrent_trials=1),
        run_config=RunConfig(name="searched", storage_path=storage, verbose=0, callbacks=[During(list(actions))]),
    ).fit()


def test_a_second_driver_of_a_search_is_refused(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for_upload: Callable[[], None]
) -> None:
    """It has another directory of results, as if it were on another machine."""
    refused: list[RunLockedError] = []

    def restore() -> None:
        wait_for_upload()
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("PACELINE_RESULTS_DIR", str(tmp_path / "elsewhere"))
            second = Tuner.restore(f"{storage}/searched", make_trainable(tmp_path))
            with pytest.raises(RunLockedError, match=r"driver.*s3://") as caught:
                second.fit()
        refused.append(caught.value)

    results = search_during(storage, tmp_path, lambda: None, restore)
    assert len(refused) == 1
    assert [result.metrics["x"] for result in results] == [1, 4]


def test_a_search_whose_driver_was_replaced_ends(
    storage: str, endpoint: str, tmp_path: Path, wait_for_upload: Callable[[], None]
) -> None:
    def replace() -> None:
        store, place = s3_filesystem(endpoint), storage.removeprefix("s3://")
        (mine,) = store.glob(f"{place}/searched/experiment-*.lease/000001")
        store.pipe_file(mine.replace("000001", "000002"), b'{"pid": 7, "host": "elsewhere"}')

    with pytest.raises(StorageError, match=r"pid 7 on host elsewhere"):
        search_during(storage, tmp_path, replace, wait_for_upload)
    names = s3_filesystem(endpoint).find(storage.removeprefix("s3://"))
    assert [name for name in names if name.endswith(".jsonl") and "experiment-" in name] == []  # nothing was uploaded
