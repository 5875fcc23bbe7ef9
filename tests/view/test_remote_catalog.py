"""Runs and searches on remote storage: found, summed up and watched, without writing anything there."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from paceline import tune
from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.air.errors import RestoreError, RunNotFoundError, StorageError
from paceline.run.found_runs import summary_of
from paceline.run.requests import request_stacks
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.lock import describe_this_process
from paceline.testing.processes import Driver, Marks, wait_for
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner
from paceline.tune.experiment.summary import experiment_summary_of
from paceline.view import remote_places
from paceline.view.catalog import Catalog, Changes, Found, find, run_facts
from paceline.view.logs import merged
from tests.storage.s3_server import s3_filesystem, s3_server

pytest.importorskip("s3fs")
pytest.importorskip("moto")

READING = {"get_object", "head_object", "head_bucket", "list_objects_v2", "list_multipart_uploads"}


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An S3 server with a bucket, and a directory for local copies."""
    import s3fs

    results = tmp_path_factory.mktemp("local") / "results"
    with s3_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "PACELINE_RESULTS_DIR": str(results),
        }.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3_filesystem(endpoint).call_s3("create_bucket", Bucket="bucket")
        yield results
    s3fs.S3FileSystem.clear_instance_cache()


def steps(config: dict[str, Any]) -> None:
    for step in range(1, 4):
        session.report({"loss": 1 / step}, checkpoint=Checkpoint.from_dict({"step": step}))
        if step == config.get("fails_at"):
            raise ValueError("it broke")


def fit(root: str, name: str, **config: Any) -> str:
    trainer = DataParallelTrainer(
        steps,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name=name, storage_path=root, verbose=0, engine="inline"),
    )
    return trainer.fit(raise_on_error=False).path


@pytest.fixture(scope="module")
def root(surroundings: Path) -> str:
    """Two runs of one experiment, and a search."""
    root = f"s3://bucket/{uuid.uuid4().hex}"
    fit(root, "runs")
    fit(root, "runs", fails_at=2)
    Tuner(
        lambda config: session.report({"score": config["x"]}),
        param_space={"x": tune.grid_search([1, 3, 2])},
        tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1),
        run_config=RunConfig(name="search", storage_path=root, verbose=0, engine="inline"),
    ).fit()
    return root


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A bucket that one may only read; the operations that were asked of it."""
    import s3fs

    asked: list[str] = []
    really = s3fs.S3FileSystem._call_s3

    async def call(self: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        asked.append(method)
        if method not in READING:
            raise PermissionError(13, f"{method} is denied")
        return await really(self, method, *arguments, **keywords)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call)
    return asked


def local(found: Found, root: str, results: Path) -> Found:
    """As it was found in the local copies."""
    return Found(
        [replace(run, path=run.path.replace(str(results), root)) for run in found.runs],
        [
            replace(
                each,
                path=each.path.replace(str(results), root),
                trials=[replace(trial, path=trial.path.replace(str(results), root)) for trial in each.trials],
            )
            for each in found.searches
        ],
        found.problems,
    )


def test_the_same_is_found_as_in_the_local_copies(root: str, surroundings: Path, read_only: list[str]) -> None:
    found = find(root)
    assert [run.status for run in found.runs] == ["failed", "finished"]
    assert found == local(find(surroundings), root, surroundings)
    assert find(f"{root}/") == found
    assert set(read_only) <= READING


def test_an_experiment_a_run_a_search_a_trial(root: str, read_only: list[str]) -> None:
    everything = find(root)
    assert find(f"{root}/runs").runs == everything.runs
    run = everything.runs[0]
    assert find(run.path).runs == [run] == [summary_of(run.path)]
    (search,) = find(f"{root}/search").searches
    assert [search] == everything.searches == [experiment_summary_of(f"{root}/search")]
    assert find(search.trials[0].path).runs[0].trial_id == search.trials[0].trial_id


def test_facts(root: str, surroundings: Path, read_only: list[str]) -> None:
    failed = find(root).runs[0]
    facts = run_facts(failed.path)
    assert facts.summary == failed
    assert [each.path for each in facts.checkpoints] == [f"{failed.path}/checkpoint_00000{n}" for n in (0, 1)]
    assert facts.how_to_continue.startswith(f"DataParallelTrainer.restore('{failed.path}'")
    local_facts = run_facts(failed.path.replace(root, str(surroundings)))
    assert local_facts.origin == failed.path
    assert local_facts.how_to_continue == facts.how_to_continue
    trial = find(root).searches[0].trials[0]
    assert run_facts(trial.path).search == f"{root}/search"


def test_a_finished_search_costs_few_requests(root: str, read_only: list[str]) -> None:
    experiment_summary_of(f"{root}/search")
    assert len(read_only) < 8, "its trials are not looked at"


def test_nothing_there(root: str) -> None:
    with pytest.raises(RunNotFoundError, match="does not exist"):
        find(f"{root}/nothing")
    with pytest.raises(RunNotFoundError, match="does not exist"):
        experiment_summary_of(f"{root}/nothing")
    with pytest.raises(RestoreError, match="does not hold a search"):
        experiment_summary_of(f"{root}/runs")
    with pytest.raises(RunNotFoundError, match="does not exist"):
        find("s3://no-such-bucket-at-all/x")
    FsspecFilesystem(f"{root}-other").write_text("readme.txt", "nothing else")
    with pytest.raises(RunNotFoundError, match="holds no runs"):
        find(f"{root}-other")


def test_a_damaged_run_does_not_hide_the_others(root: str) -> None:
    other = f"{root}-damaged"
    path = fit(other, "runs")
    FsspecFilesystem(f"{other}/runs/damaged").write_text("journal.jsonl", "not a journal\n")
    found = find(other)
    assert [run.path for run in found.runs] == [path]
    (problem,) = found.problems
    assert (problem.path, problem.damaged) == (f"{other}/runs/damaged", True)
    assert "damaged" in problem.message
    assert "/tmp/" not in problem.message


def test_a_driver_on_another_machine(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it lives can only be told by the age of its lease, and by the store's clock."""
    import json

    path = fit(f"{root}-elsewhere", "runs")
    store = FsspecFilesystem(path)
    store.delete("lease")
    holder = {**describe_this_process(), "boot_id": "another", "token": "its own", "renewals": 3}
    store.write_text("lease/000001", json.dumps(holder))
    assert summary_of(path).alive
    monkeypatch.setattr(FsspecFilesystem, "age_seen", lambda self, name: 3600.0)
    assert not summary_of(path).alive


LIVE = """
import sys
from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer

def loop(config):
    marks = Marks(config["marks"])
    for step in range(1, 1_000_000):
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        print("said", step, flush=True)
        marks.say("saved", step=step)
        marks.pass_gate(f"step{step}")

DataParallelTrainer(
    loop,
    train_loop_config={"marks": sys.argv[2]},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(name="live", storage_path=sys.argv[1], verbose=0),
).fit()
"""


def test_a_live_run_is_watched(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIVE_S", "OPEN_S", "FINISHED_S", "FOLDERS_S"):
        monkeypatch.setattr(remote_places, name, 0.0)
    live = f"{root}-live"
    fit(live, "runs")
    catalog = Catalog(live)
    (first,) = catalog.refresh().changed
    assert (first.kind, first.summary.status, len(first.id)) == ("run", "finished", 12)
    assert catalog.refresh() == Changes()
    marks = Marks(tmp_path / "marks")
    with Driver(["-c", LIVE, live, str(marks.directory)], output=tmp_path / "driver.txt") as driver:
        marks.wait("saved", step=1)

        def reached(step: int) -> Any:
            changed = [entry for entry in catalog.refresh().changed if entry.summary.alive]
            return changed[0] if changed and changed[0].summary.reached.iteration >= step else None

        entry = wait_for(lambda: reached(1), "the live run")
        marks.open_gate("step1")
        marks.wait("saved", step=2)
        again = wait_for(lambda: reached(2), "its second step")
        assert again.id == entry.id
        path = catalog.place(entry.id)
        assert [line.text for line in merged(path)] == ["said 1", "said 2"], "its logs are on this machine"
        assert "loop" in request_stacks(path)[0]
        driver.kill()
    (killed,) = wait_for(lambda: catalog.refresh().changed, "its end")
    assert (killed.id, killed.summary.status) == (entry.id, "killed")
    FsspecFilesystem(path).delete("")
    assert wait_for(lambda: catalog.refresh().removed, "its removal") == [entry.id]


def test_a_search_with_trials_that_have_not_ended(root: str, surroundings: Path) -> None:
    """A killed driver has not recorded how they ended: their own journals tell."""
    killed = f"{root}-killed"
    source, target = FsspecFilesystem(f"{root}/search"), FsspecFilesystem(f"{killed}/search")
    for name in source.list():
        if "tfevents" in name or "checkpoint" in name:
            continue
        text = source.read_text(name)
        if name.startswith("experiment-") and name.endswith(".jsonl"):
            lines = text.splitlines(keepends=True)
            text = "".join(line for line in lines if '"kind":"end","n":2' not in line and '"kind":"finish"' not in line)
        target.write_text(name, text)
    summary = experiment_summary_of(f"{killed}/search")
    assert (summary.status, summary.alive) == ("killed", False)
    assert [trial.status for trial in summary.trials] == ["finished"] * 3
    assert [trial.path for trial in summary.trials] == [f"{killed}/search/{Path(t.path).name}" for t in summary.trials]
    assert find(killed).searches == [summary]


def test_a_store_that_does_not_answer_for_a_while(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIVE_S", "OPEN_S", "FINISHED_S", "FOLDERS_S"):
        monkeypatch.setattr(remote_places, name, 0.0)
    catalog = Catalog(root)
    count = len(catalog.refresh().changed)
    assert count == 2 + 1 + 3

    def refuse(*_: Any, **__: Any) -> Any:
        raise StorageError(5, "the store is away", root)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("download", "read_text", "list"):
            patch.setattr(FsspecFilesystem, name, refuse)
        assert catalog.refresh() == Changes(), "what was known stays"
        patch.setattr(FsspecFilesystem, "entries", refuse)
        with pytest.raises(StorageError, match="away"):
            catalog.refresh()
    assert catalog.refresh() == Changes()
    assert len(catalog.entries()) == count


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RESULTS_DIR", str(tmp_path))
    uri = f"memory://{uuid.uuid4().hex}"
    path = fit(uri, "runs")
    shutil.rmtree(tmp_path)
    assert [run.path for run in find(uri).runs] == [path]
    assert run_facts(path).summary.status == "finished"
