"""Train functions with horovod.torch on two real workers."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline import train, tune
from paceline.air import session
from paceline.air.checkpoint import Checkpoint
from paceline.air.config import FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import TrainingFailedError
from paceline.air.result import Result
from paceline.testing import invariants
from paceline.testing.invariants import check_run, listening_sockets
from paceline.train.horovod import HorovodConfig, HorovodTrainer, backend
from paceline.train.torch import TorchCheckpoint
from paceline.tune import Callback

TWO = ScalingConfig(num_workers=2)


def train_linear(config: dict[str, Any]) -> None:
    """A model that starts differently on every rank, and different rows on every rank."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"] * hvd.size(), momentum=0.5)
    begin = 0
    newest = session.get_checkpoint()
    if newest is not None and hvd.rank() == 0:
        state = newest.to_dict()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    if newest is not None:
        begin = newest.to_dict()["epoch"] + 1
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(7 + hvd.rank()))
    wanted = rows @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    started_with = model.weight.ravel().tolist()
    for epoch in range(begin, config["epochs"]):
        for inputs, targets in zip(rows.split(16), wanted.split(16), strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        session.report(
            {
                "epoch": epoch,
                "loss": hvd.allreduce(loss.detach()).item(),
                "weights": model.weight.ravel().tolist(),
                "started_with": started_with,
                "place": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()],
                "addresses": sorted({each.laddr.ip for each in psutil.Process().net_connections("tcp")}),
                "parent": os.getppid(),
            },
            checkpoint=Checkpoint.from_dict(state),
        )
    hvd.shutdown()


class SeesDriver(Callback):
    """What the driver listens on while workers train, and did not before."""

    def __init__(self) -> None:
        self._before = set(listening_sockets(os.getpid()))
        self.listening: set[str] = set()

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        self.listening.update(set(listening_sockets(os.getpid())) - self._before)


@pytest.fixture(scope="module")
def seen() -> SeesDriver:
    return SeesDriver()


@pytest.fixture(scope="module")
def trained(seen: SeesDriver, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return HorovodTrainer(
        train_linear,
        train_loop_config={"lr": 0.05, "epochs": 3},
        scaling_config=TWO,
        run_config=RunConfig(storage_path=str(tmp_path_factory.mktemp("trained")), callbacks=[seen]),
    ).fit()


def fit(function: Any, *, config: dict[str, Any] | None = None, **arguments: Any) -> Result:
    return HorovodTrainer(function, train_loop_config=config, **{"scaling_config": TWO, **arguments}).fit()


def nothing_is_left() -> bool:
    threads = [thread for thread in threading.enumerate() if thread.name == "horovod-rendezvous"]
    return not threads and set(listening_sockets(os.getpid())) <= invariants.sockets_before


def test_losses_fall_and_ranks_agree(trained: Result) -> None:
    losses = list(trained.metrics_dataframe["loss"])
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    rows = trained.rank_metrics
    assert [rows[rank]["place"] for rank in (0, 1)] == [[0, 2, 0, 2, 1], [1, 2, 1, 2, 1]]
    for name in ("started_with", "weights", "loss"):
        assert rows[0][name] == rows[1][name]


def test_workers_are_forked_from_one_process(trained: Result) -> None:
    assert trained.rank_metrics[0]["parent"] == trained.rank_metrics[1]["parent"] != os.getpid()


def test_all_is_on_loopback_and_nobody_listens_afterwards(trained: Result, seen: SeesDriver) -> None:
    (listening,) = seen.listening
    assert listening.startswith("tcp 0100007F:")
    assert [trained.rank_metrics[rank]["addresses"] for rank in (0, 1)] == [["127.0.0.1"], ["127.0.0.1"]]
    assert nothing_is_left()
    check_run(trained.path, result=trained, iterations=3, attempts=1)


def test_resume_continues_at_the_next_epoch(trained: Result) -> None:
    result = fit(train_linear, config={"lr": 0.05, "epochs": 5}, resume_from_checkpoint=trained.checkpoint)
    assert list(result.metrics_dataframe["epoch"]) == [3, 4]
    for row in result.rank_metrics.values():
        assert row["started_with"] == trained.metrics["weights"]
        assert row["weights"] == result.metrics["weights"]
    assert result.metrics["loss"] < trained.metrics["loss"]


def test_one_worker_meets_nobody() -> None:
    def alone() -> None:
        import horovod.torch as hvd
        import torch

        hvd.init()
        total = hvd.allreduce(torch.ones(2), op=hvd.Sum)
        address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        weights = TorchCheckpoint.from_state_dict({"total": total})
        train.report({"size": hvd.size(), "total": total.tolist(), "address": address}, checkpoint=weights)

    result = fit(alone, scaling_config=ScalingConfig(num_workers=1))
    assert (result.metrics["size"], result.metrics["total"], result.metrics["address"]) == (1, [1.0, 1.0], None)
    assert result.checkpoint is not None


def test_a_retry_meets_in_a_place_of_its_own() -> None:
    def fails_once() -> None:
        import horovod.torch as hvd
        import torch

        hvd.init()
        port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        earlier = session.get_checkpoint()
        if earlier is None:
            session.report({"port": port}, checkpoint=Checkpoint.from_dict({"port": port}))
            if hvd.rank() == 1:
                raise ValueError("the first time")
            hvd.allreduce(torch.ones(1))  # rank 0 waits for one that is not coming
        old = earlier.to_dict()["port"]  # type: ignore[union-attr]
        with socket.socket() as probe:
            session.report({"old": old, "port": port, "answer": probe.connect_ex(("127.0.0.1", old))})

    result = fit(fails_once, run_config=RunConfig(failure_config=FailureConfig(max_failures=1)))
    assert result.metrics["old"] != result.metrics["port"]
    assert result.metrics["answer"] != 0
    assert nothing_is_left()
    check_run(result.path, result=result, attempts=2)


def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(variables: dict[str, str], defaults: dict[str, str]) -> None:
        raise OSError(f"rank {variables['HOROVOD_RANK']} has no room")

    monkeypatch.setattr(backend, "enter", refuses)
    with pytest.raises(TrainingFailedError, match=r"rank [01] has no room"):
        fit(train_linear, config={"lr": 0.1, "epochs": 1})
    assert nothing_is_left()


def test_an_interrupt_leaves_nothing() -> None:
    class InterruptsTwice(Callback):
        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(train_linear, config={"lr": 0.1, "epochs": 1000}, run_config=RunConfig(callbacks=[InterruptsTwice()]))
    assert nothing_is_left()


def test_a_rank_that_returns_early_is_not_waited_for() -> None:
    def leaves_early() -> None:
        import horovod.torch as hvd
        import torch

        hvd.init()
        if hvd.rank() == 0:
            hvd.allreduce(torch.ones(1))

    # Whichever notices first: Horovod in rank 0, or the driver, which sees where rank 0 waits.
    said = "rank 0: HorovodInternalError|rank 1 returned before its first report while rank 0 waited in"
    with pytest.raises(TrainingFailedError, match=said):
        fit(leaves_early)


def test_a_rank_that_does_not_call_init_is_waited_for_as_long_as_was_said() -> None:
    def rank_1_stays_away() -> None:
        import horovod.torch as hvd

        if session.get_world_rank() == 0:
            hvd.init()
        else:
            signal.pause()

    with pytest.raises(TrainingFailedError, match=r"(?s)rank 0.*SIGABRT.*in init") as caught:
        fit(rank_1_stays_away, horovod_config=HorovodConfig(timeout_s=1))
    assert caught.value.result is not None
    log = Path(caught.value.result.path, "logs", "rank_0.log").read_text()
    assert "Wait timeout after 1 seconds for key(s): 1" in log
    assert "Hint: hvd.init()" in str(caught.value)


def test_a_search_over_the_trainer_and_a_restore(tmp_path: Path) -> None:
    trainer = HorovodTrainer(train_linear, train_loop_config={"lr": 0.05, "epochs": 2}, scaling_config=TWO)
    grid = tune.Tuner(
        trainer,
        param_space={"train_loop_config": {"lr": tune.grid_search([0.001, 0.05])}},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(storage_path=str(tmp_path), name="search", stop={"epoch": 0}),
    ).fit()
    assert [result.error for result in grid] == [None, None]
    best = grid.get_best_result()
    assert best.metrics["config"]["train_loop_config"]["lr"] == 0.05


def test_a_restore_knows_the_flavour(tmp_path: Path) -> None:
    run_config = RunConfig(storage_path=str(tmp_path), name="run", stop={"epoch": 0}, verbose=0)
    HorovodTrainer(
        train_linear, train_loop_config={"lr": 0.05, "epochs": 2}, scaling_config=TWO, run_config=run_config
    ).fit()
    restored = HorovodTrainer.restore(tmp_path / "run", train_linear)
    assert restored.backend_config.backend_cls is backend.HorovodTorchBackend
    assert restored.fit().metrics["epoch"] == 0  # it had ended; nothing is trained again
