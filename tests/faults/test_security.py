"""Files and places that somebody else may have prepared."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from paceline.air import Checkpoint, Result
from paceline.air.errors import CheckpointCorruptError, CheckpointError, StorageError
from paceline.storage.run_dir import RunDir
from paceline.testing.invariants import check_run, listening_sockets
from paceline.testing.processes import descendants
from paceline.testing.scripts import Action
from paceline.train import DataParallelTrainer
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory


class Canary:
    """Sings (touches a file) if anybody unpickles it."""

    def __init__(self, song: Path) -> None:
        self.song = song

    def __reduce__(self) -> Any:
        return (os.system, (f"touch '{self.song}'",))


def look_in_every_way(trial_dir: Path) -> None:
    """All that can be done with a run's directory without asking for the content of a dict.

    Whether a look is refused does not matter here: only what it does on the way.
    """
    for place in (trial_dir, trial_dir.parent):
        with contextlib.suppress(Exception):
            assert Result.from_path(str(place)).metrics_dataframe is not None
        with contextlib.suppress(Exception):
            DataParallelTrainer.can_restore(str(place))
        with contextlib.suppress(Exception):
            DataParallelTrainer.restore(str(place), train_loop_per_worker=nothing).fit()
    for path in trial_dir.glob("checkpoint_*"):
        with contextlib.suppress(Exception):
            checkpoint = Checkpoint.from_directory(str(path))
            checkpoint.get_metadata()
            checkpoint.get_internal_representation()
            checkpoint.to_directory(str(path.with_name(f"copy of {path.name}")))
            pickle.loads(pickle.dumps(checkpoint))
            with checkpoint.as_directory():
                pass


def nothing() -> None:
    pass


STATE_FILES = [
    "journal.jsonl",
    "lock",
    "params.json",
    "result.json",
    "progress.csv",
    "checkpoint_000001/MANIFEST.json",
    "checkpoint_000001/.metadata.json",
    "checkpoint_000001/dict_checkpoint.pkl",
    "checkpoint_000001/model.pt",
    "checkpoint_000001/.metadata",
    "checkpoint_000001/extra.pt",
    "checkpoint_000001/preprocessor.pkl",
    "params.pkl",
    "trainer.pkl",
    "error.pkl",
    "tuner.pkl",
]
EVERYDAY_FILES = ["journal.jsonl", "checkpoint_000001/MANIFEST.json", "checkpoint_000001/preprocessor.pkl"]


@pytest.fixture
def failed_dict_run(lab: Laboratory) -> Path:
    """A run with dict checkpoints that can be restored."""

    def loop() -> None:
        from paceline.air import session

        for iteration in (1, 2):
            session.report({"iteration": iteration}, checkpoint=Checkpoint.from_dict({"iteration": iteration}))
        raise ValueError("enough")

    lab.failure_of(loop, workers=1)
    return lab.trial_dir


@pytest.mark.parametrize("name", mostly_slow(STATE_FILES, everyday=EVERYDAY_FILES))
def test_nothing_that_lies_in_a_run_is_ever_unpickled(lab: Laboratory, failed_dict_run: Path, name: str) -> None:
    """S4."""
    song = lab.root / "song"
    (failed_dict_run / name).write_bytes(cloudpickle.dumps(Canary(song)))
    look_in_every_way(failed_dict_run)
    assert not song.exists(), f"a pickle in {name} was executed"


@pytest.mark.parametrize("name", [".metadata", "extra.pt", "__0_0.distcp"])
def test_a_sharded_checkpoint_of_strangers_runs_no_code(lab: Laboratory, name: str) -> None:
    """S4: It has no manifest that would give the canary away."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._dynamo")  # sets variables when it is imported, which no test shall be blamed for
    from torch.distributed.checkpoint.state_dict_saver import save

    from paceline.train.torch import TorchCheckpoint, load_sharded

    song, place, model = lab.root / "song", lab.root / "strange", torch.nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="single process"):
        save({"model": {**model.state_dict(), "bias": Canary(song)}}, checkpoint_id=place)
    if name != "__0_0.distcp":
        (place / name).write_bytes(cloudpickle.dumps(Canary(song)))
    for load in (
        lambda: load_sharded(str(place), model),
        TorchCheckpoint.from_directory(place).get_weights,
        TorchCheckpoint.from_directory(place).to_dict,
    ):
        with pytest.raises(CheckpointError):
            load()
    assert not song.exists()
    with contextlib.suppress(Exception):
        load_sharded(str(place), model, trust=True)
    assert song.exists()


def test_the_canary_sings(lab: Laboratory, failed_dict_run: Path) -> None:
    """The user's own request for the dict does unpickle, so the test above would notice. A manifest guards it."""
    song = lab.root / "song"
    file = failed_dict_run / "checkpoint_000001" / "dict_checkpoint.pkl"
    assert file.exists()
    file.write_bytes(cloudpickle.dumps({"value": Canary(song)}))
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.from_directory(str(file.parent)).to_dict()
    assert not song.exists()
    (file.parent / "MANIFEST.json").unlink()
    Checkpoint.from_directory(str(file.parent)).to_dict()
    assert song.exists()


def test_pickle_is_not_even_called(lab: Laboratory, failed_dict_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: In the driver; restoring, listing and reading results of a sound run."""
    called: list[str] = []
    for module in (pickle, cloudpickle):
        for name in ("load", "loads"):
            monkeypatch.setattr(module, name, lambda *_, name=name, **__: called.append(name))
    assert Result.from_path(str(failed_dict_run)).checkpoint is not None
    assert DataParallelTrainer.can_restore(str(failed_dict_run))
    DataParallelTrainer.restore(str(failed_dict_run), train_loop_per_worker=nothing).fit()
    assert called == []


def test_nobody_can_connect_to_a_run(lab: Laboratory) -> None:
    """S8: Channels are inherited pairs: neither driver, warden nor workers have a socket to connect to."""
    waiting = [Action("wait", 3, rank, str(lab.marks.directory)) for rank in (0, 1)]
    with lab.drive(lab.plan(*waiting)) as driver:
        lab.marks.wait("action", 2, do="wait")
        family = [driver.pid, *(member.pid for member in descendants(driver.pid))]
        assert len(family) >= 4
        assert {pid: listening_sockets(pid) for pid in family} == {pid: [] for pid in family}
        for pid in family:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert b"token" not in arguments.lower()
        lab.marks.open_gate("worker")
        assert driver.wait() == 0
    check_run(lab.trial_dir)


def test_torch_listens_on_loopback_only(lab: Laboratory) -> None:
    pytest.importorskip("torch")
    from paceline.air import RunConfig, ScalingConfig, session
    from paceline.train.torch import TorchTrainer

    def loop(config: dict[str, Any]) -> None:
        import torch

        torch.distributed.all_reduce(torch.ones(1))
        session.report({"sockets": listening_sockets(os.getpid())})

    result = TorchTrainer(
        loop,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(lab.storage), verbose=0),
    ).fit()
    everywhere = ("tcp 00000000:", f"tcp6 {'0' * 32}:")
    for metrics in result.rank_metrics.values():
        assert [socket for socket in metrics["sockets"] if socket.startswith(everywhere)] == []


def test_a_careless_umask_opens_nothing(lab: Laboratory) -> None:
    """S11."""
    before = os.umask(0)
    try:
        result = lab.succeed(lab.plan())
    finally:
        os.umask(before)
    root = Path(result.path)
    checkpoints = {
        path for kept in root.glob("checkpoint_*") for path in kept.rglob("*")
    }  # these keep the modes that the user gave them
    open_to_others = {
        str(path.relative_to(lab.storage)): f"{path.stat().st_mode:o}"
        for path in [lab.storage, root.parent, root, *root.rglob("*")]
        if path not in checkpoints and path.stat().st_mode & (0o077 if path.is_dir() else 0o022)
    }
    assert open_to_others == {}


def test_a_link_in_place_of_the_trial_directory_is_refused(tmp_path: Path) -> None:
    """S11."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "trial").symlink_to(elsewhere)
    with pytest.raises(StorageError):
        RunDir(tmp_path / "trial").create()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    """S11."""
    foreign = tmp_path / "trial"
    foreign.mkdir()
    os.chown(foreign, 65534, 65534)
    with pytest.raises(StorageError, match="65534"):
        RunDir(foreign).create()
    assert list(foreign.iterdir()) == []


def test_the_sweep_touches_only_what_is_ours(lab: Laboratory) -> None:
    """Links are removed, not followed; names that only look similar stay."""
    treasure = lab.root / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("gold")
    plan = lab.plan(Action("signal", 3, 1, signal.SIGKILL))
    lab.fail(plan, {"kind": "signal"})
    (lab.trial_dir / ".checkpoint_000009.tmp-0-abcdef01").symlink_to(treasure)
    trash = lab.trial_dir / ".trash-checkpoint_000008-abcdef01"
    trash.mkdir()
    (trash / "link").symlink_to(treasure)
    (lab.trial_dir / "my.tmp-notes").mkdir()
    lab.succeed(plan.continued(lab.trial_dir))
    assert (treasure / "gold").read_text() == "gold"
    assert (lab.trial_dir / "my.tmp-notes").is_dir()
    shutil.rmtree(lab.trial_dir / "my.tmp-notes")
