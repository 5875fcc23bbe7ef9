"""Runs of every kind, made once for all tests of commands: live, finished, failed, killed, damaged, remote."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline import train, tune
from paceline.cli.main import main
from paceline.run.found_runs import summary_of
from paceline.storage.run_dir import RunDir
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.tune import TuneConfig, Tuner
from tests.storage.s3_server import s3_filesystem, s3_server

DRIVER = Path(__file__).parent / "driver.py"
WAIT_S = 60.0
HOSTILE = '\x1b[31mred\x07<img src=x onerror=alert(1)>"\x9b2J'
"""Control characters, markup and quotes. A line feed would be one more line of a log."""


@dataclass
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process."""

    def call(*arguments: object) -> Said:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call


def steps(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    for step in range(config["steps"]):
        print(f"step {step} of rank {rank}", config.get("says", ""), flush=True)
        metrics = {"loss": 1 / (step + 1), "acc": {"top1": step / 10}, **config.get("metrics", {})}
        train.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))
        if step == config.get("fails_at") and rank == 1:
            raise ValueError("the data has a hole")


def fit(root: Path | str, name: str, config: dict[str, Any], **settings: Any) -> str:
    """The path of a run with two workers."""
    trainer = DataParallelTrainer(
        steps,
        train_loop_config={"steps": 3, "lr": 0.1, **config},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=name,
            storage_path=str(root),
            verbose=0,
            stop={"training_iteration": 10},
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
            ),
            **settings,
        ),
    )
    return trainer.fit(raise_on_error=False).path


def objective(config: dict[str, Any]) -> None:
    for step in range(2):
        tune.report({"loss": config["x"] ** 2 + step}, checkpoint=Checkpoint.from_dict({"step": step}))
    if config["x"] == 3:
        raise ValueError("x is three")


def search(root: Path | str, name: str) -> str:
    """The path of a search with four trials, of which one failed."""
    tuner = Tuner(
        objective,
        param_space={"x": tune.grid_search([2, 1, 3, 4])},
        tune_config=TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name=name, storage_path=str(root), verbose=0),
    )
    tuner.fit()
    return f"{root}/{name}"


@dataclass
class Live:
    """A run in another process."""

    process: subprocess.Popen[bytes]
    path: str
    signs: Path

    def end(self) -> None:
        (self.signs / "release").touch()
        self.process.wait(WAIT_S)

    def kill(self) -> None:
        """End the driver as the system does when memory is short, and wait until nobody holds the run."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        until(lambda: summary_of(self.path).status == "killed")


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something; what it is."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def live_run(root: Path | str, name: str, signs: Path) -> Iterator[Live]:
    """A run that has three checkpoints and reports until it is told to end."""
    signs.mkdir(parents=True, exist_ok=True)
    local = Path(root) if "://" not in str(root) else Path(os.environ["PACELINE_RESULTS_DIR"])
    process = subprocess.Popen([sys.executable, str(DRIVER), str(root), name, str(signs)])
    try:
        until(lambda: (signs / "ready").exists() or process.poll() is not None)
        assert process.poll() is None, "the driver ended too early"
        (path,) = (local / name).iterdir()
        yield Live(process, str(path), signs)
    finally:
        (signs / "release").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WAIT_S)
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Runs:
    """Paths of runs; all are below `root`, in experiments of the same names."""

    root: Path
    finished: str
    failed: str
    killed: str
    live: str
    damaged: str
    """Its journal does not begin with a header."""
    bitten: str
    """A record in the middle of its journal is damaged."""
    rotten: str
    """Its newest checkpoint is damaged."""
    search: str

    def of_kind(self, kind: str) -> str:
        return str(getattr(self, kind))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    root, signs = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("signs")
    with live_run(root, "killed", signs / "killed") as killed:
        killed.kill()
    with live_run(root, "live", signs / "live") as live:
        finished = fit(root, "finished", {})
        yield Runs(
            root,
            finished=finished,
            failed=fit(root, "failed", {"fails_at": 1}),
            killed=killed.path,
            live=live.path,
            damaged=with_damage(finished, root / "damaged", spoil_header),
            bitten=with_damage(finished, root / "bitten", spoil_row),
            rotten=with_damage(finished, root / "rotten", spoil_checkpoint),
            search=search(root, "search"),
        )


def with_damage(run: str, experiment: Path, spoil: Callable[[RunDir], None]) -> str:
    """A copy of a run of which something is damaged."""
    copy = experiment / Path(run).name
    shutil.copytree(run, copy)
    spoil(RunDir(copy))
    return str(copy)


def spoil_header(run_dir: RunDir) -> None:
    content = run_dir.journal.read_bytes()
    run_dir.journal.write_bytes(b"00000000" + content[8:])


def spoil_row(run_dir: RunDir) -> None:
    lines = run_dir.journal.read_bytes().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if b'"kind":"row"' in line)
    lines[number] = lines[number].replace(b"loss", b"lass")
    run_dir.journal.write_bytes(b"".join(lines))


def spoil_checkpoint(run_dir: RunDir) -> None:
    _, newest = run_dir.checkpoints()[-1]
    file = newest / "dict_checkpoint.pkl"
    file.write_bytes(file.read_bytes()[:-1] + b"x")


@pytest.fixture(scope="session")
def s3_settings() -> Iterator[dict[str, str]]:
    """The variables with which a bucket is reached."""
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with s3_server() as endpoint:
        s3fs.S3FileSystem.clear_instance_cache()
        s3_filesystem(endpoint).call_s3("create_bucket", Bucket="bucket")
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    s3fs.S3FileSystem.clear_instance_cache()


@dataclass(frozen=True)
class RemoteRuns:
    root: str
    finished: str
    search: str


@pytest.fixture(scope="session")
def made_remotely(s3_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> RemoteRuns:
    root = "s3://bucket/results"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_settings.items():
            patch.setenv(name, value)
        patch.setenv("PACELINE_RESULTS_DIR", str(tmp_path_factory.mktemp("twins")))
        return RemoteRuns(root, fit(root, "finished", {}), search(root, "search"))


@pytest.fixture
def remote(made_remotely: RemoteRuns, s3_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> RemoteRuns:
    """Runs on a store, of which this machine has no copy where it would look for one."""
    for name, value in s3_settings.items():
        monkeypatch.setenv(name, value)
    return made_remotely
