"""What LightGBMTrainer refuses, where it was written; how its workers find each other."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.train.lightgbm import LightGBMConfig, ReportCallback, network
from tests.train.lightgbm.boosting import numbers, quick_trainer

FRAMES = {"train": numbers(100)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"params": {"machines": "a:1,b:2"}}, "'machines'.: the workers are connected by the trainer"),
        ({"params": {"port": 12400}}, "'port'.: the workers are connected by the trainer"),
        ({"params": {"num_machines": 4}}, "ScalingConfig.num_workers"),
        ({"params": {"weight_column": "w"}}, "dmatrix_params"),
        ({"params": {"tree_learner": "serial"}}, "'serial', which does not work where each of 2 workers"),
        ({"params": {"tree": "feature"}}, "choose 'data' .the default. or 'voting'"),
        ({"params": {"tree_learner": "dat"}}, "'dat': choose 'data' or 'voting'"),
        ({"params": {"linear_tree": True}}, "works on one worker only: with several, each worker would train"),
        ({"params": {"interaction_constraints": [[0, 1]]}}, "works on one worker only"),
        ({"params": {"cegb_penalty_feature_coupled": [1] * 5}}, "wait for each other for ever"),
        ({"params": {"mc_method": "advanced"}}, "'advanced', which works on one worker only"),
        ({"params": {"num_iterations": 7}, "num_boost_round": 9}, "How many rounds.*is 7, num_boost_round is 9"),
        ({"params": {"n_estimators": 7, "num_trees": 8}, "num_boost_round": None}, "Give the number once"),
        ({"init_model": "model.txt"}, "resume_from_checkpoint=LightGBMCheckpoint"),
        ({"valid_sets": []}, "datasets="),
        ({"early_stopping_rounds": 5}, "lightgbm.early_stopping"),
        ({"callbacks": [ReportCallback()]}, "the trainer reports every round itself"),
        ({"lightgbm_config": {}}, "takes a LightGBMConfig, not dict"),
        ({"dmatrix_params": {"train": {"base_margin": "f0"}}}, "has no entry 'base_margin'"),
        ({"dmatrix_params": {"train": {"group": [2, 3]}}}, "must be the name of a column"),
    ],
)
def test_refused_at_construction(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        quick_trainer(FRAMES, **arguments)


@pytest.mark.parametrize("name", ["num_iterations", "n_estimators", "num_boost_round"])
def test_the_number_of_rounds_may_be_a_parameter(name: str) -> None:
    trainer = quick_trainer(
        FRAMES,
        params={"objective": "regression", name: 3},
        num_boost_round=None,
        workers=1,
        run_config={"engine": "inline"},
    )
    assert trainer.fit().metrics["training_iteration"] == 3


def test_the_driver_loads_no_lightgbm() -> None:
    code = (
        "import sys; from paceline.train.lightgbm import LightGBMTrainer, LightGBMCheckpoint, LightGBMPredictor;"
        "assert not {'lightgbm', 'sklearn', 'pandas', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_ports_that_are_taken_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        monkeypatch.setattr(network, "_candidates", lambda: [taken.getsockname()[1], 0])
        with network.hold_port() as held:
            assert held.getsockname()[1] != taken.getsockname()[1]
            with pytest.raises(OSError), socket.socket() as other:
                other.bind(("", held.getsockname()[1]))


def test_a_port_that_stays_taken_is_told_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_BIND_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"could not connect the workers over port {port}"):
            network._init_network([port, port + 1], port)


@pytest.fixture
def hub() -> Iterator[int]:
    """The port of rank 0 of two workers, which this process is."""
    port = network.open_hub()
    network.take_place(0, 2)
    yield port
    for line in network._lines:
        line.close()
    network._lines.clear()
    network.take_place(0, 1)


def test_strangers_at_the_hub_delay_nobody_for_long(hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_HELLO_S", 0.1)
    token = b"t" * 32
    with (
        socket.create_connection(("127.0.0.1", hub)),  # says nothing
        socket.create_connection(("127.0.0.1", hub)) as rude,
        ThreadPoolExecutor(1) as other,
    ):
        rude.sendall(b"\xff" * 1000)
        arriving = other.submit(network._line_to_hub, hub, token, 1)
        network._let_everyone_in(token, 30)
        line = arriving.result()
        line.send_bytes(b"here")
        assert network._lines[0].recv_bytes() == b"here"
        line.close()


def test_strangers_at_the_hub_do_not_extend_the_deadline(hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_HELLO_S", 0.1)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", hub))) for _ in range(20)]
        with pytest.raises(ConnectionError, match=r"within 0\.3 s.*rank\(s\) 1 did not come"):
            network._let_everyone_in(b"t" * 32, 0.3)
        with pytest.raises(ConnectionResetError):  # still waiting in line when the hub gave up
            silent[-1].recv(1)


def test_a_stranger_that_sends_byte_by_byte_has_no_more_time(hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_HELLO_S", 0.1)
    token = b"t" * 32

    def drip(stranger: socket.socket) -> bool:
        """Whether the hub cut the connection before everything was sent."""
        try:
            stranger.sendall(struct.pack("!i", 256))
            for _ in range(100):
                stranger.sendall(b"x")
                time.sleep(0.02)
        except OSError:
            return True
        return False

    with socket.create_connection(("127.0.0.1", hub)) as stranger, ThreadPoolExecutor(2) as others:
        dripping = others.submit(drip, stranger)
        arriving = others.submit(network._line_to_hub, hub, token, 1)
        network._let_everyone_in(token, 30)
        arriving.result().close()
        assert dripping.result()


def test_a_rank_that_does_not_come_is_named_in_time(hub: int) -> None:
    with pytest.raises(ConnectionError, match=r"within 0\.2 s.*rank\(s\) 1 did not come"):
        network._let_everyone_in(b"t" * 32, 0.2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", hub))


def test_nothing_listens_once_the_workers_are_connected(tmp_path: Any) -> None:
    """LightGBM listens on all interfaces while it connects, and only then."""

    def listening(env: Any) -> None:
        import psutil

        connections = psutil.Process().net_connections(kind="inet")
        names = [f"{each.laddr}" for each in connections if each.status == psutil.CONN_LISTEN]
        (tmp_path / "listening").open("a").write("".join(names))

    quick_trainer(FRAMES, num_boost_round=2, callbacks=[listening], lightgbm_config=LightGBMConfig()).fit()
    assert (tmp_path / "listening").read_text() == ""


@pytest.mark.parametrize(
    "params",
    [{"linear_tree": True}, {"interaction_constraints": [[0, 1], [2, 3, 4]]}, {"mc_method": "advanced"}],
)
def test_one_worker_takes_what_several_cannot(params: dict[str, Any]) -> None:
    quick_trainer(FRAMES, workers=1, params={"objective": "regression", **params}).fit()


@pytest.mark.parametrize("name", ["mae", "quantile", "mape"])
def test_leaves_that_are_quantiles_need_rows_in_random_order(name: str, recwarn: pytest.WarningsRecorder) -> None:
    quick_trainer(FRAMES, workers=1, params={"app": name}).to_run_spec()
    assert not recwarn.list
    with pytest.warns(UserWarning, match=f"objective='{name}' with several workers.*random_shuffle") as caught:
        quick_trainer(FRAMES, params={"app": name}).to_run_spec()
    assert caught[0].filename == __file__
