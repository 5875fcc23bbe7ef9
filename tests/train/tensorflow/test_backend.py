"""How TensorFlow's workers learn of each other, and what trainer and backend take."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from paceline.air import FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.train.imports import AfterImport
from paceline.train.tensorflow import (
    TensorflowConfig,
    TensorflowTrainer,
    backend,
    prepare_dataset_shard,
)
from paceline.train.tensorflow.backend import TensorflowBackend


def can_connect(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def open_sockets() -> set[str]:
    links = (os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path))
    return {link for link in links if link.startswith("socket:")}


# -- the inline engine, devices, proxies, meetings ---------------------------------------------


def raises_in_driver() -> None:
    assert "TF_CONFIG" in os.environ
    raise ValueError("on purpose")


def test_a_failed_run_leaves_nothing_in_the_driver() -> None:
    before, sockets = dict(os.environ), open_sockets()
    trainer = TensorflowTrainer(
        raises_in_driver,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(engine="inline", verbose=0),
    )
    with pytest.raises(TrainingFailedError, match="on purpose"):
        trainer.fit()
    assert dict(os.environ) == before
    assert open_sockets() == sockets


def fails_once(config: dict[str, str]) -> None:
    try:
        open(os.path.join(config["place"], str(session.get_world_rank())), "x").close()
    except FileExistsError:
        return
    raise ValueError("on purpose")


@pytest.mark.parametrize("workers", [1, 2])
def test_that_tensorflow_listens_everywhere_is_said_once(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorFlow itself is not loaded for it."""
    TensorflowTrainer(
        fails_once,
        train_loop_config={"place": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=str(tmp_path / "results"), verbose=1, failure_config=FailureConfig(max_failures=4)
        ),
    ).fit()
    assert capsys.readouterr().out.count("network interfaces") == workers - 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "10.0.0.1,10.0.0.2"),
        ({"no_proxy": "example.org,.local"}, "example.org,.local,10.0.0.1,10.0.0.2"),
        ({"NO_PROXY": "example.org"}, "example.org,10.0.0.1,10.0.0.2"),
        ({"no_grpc_proxy": "mine", "no_proxy": "other"}, "mine,10.0.0.1,10.0.0.2"),
    ],
)
def test_grpc_keeps_the_hosts_that_the_user_has_excepted_from_the_proxy(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY", "TF_CONFIG", "TF_GRPC_REUSE_PORT"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(backend, "_CORRECTIONS", AfterImport({}))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    backend.enter([("10.0.0.1", 1, 2), ("10.0.0.2", 3, 4), ("10.0.0.2", 5, 6)], 0)
    backend.ClusterMember.end()
    assert dict(os.environ)["no_grpc_proxy"] == expected


def test_workers_meet_when_the_last_one_has_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend, "TELL_AFTER_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as missing:
        missing.bind(("127.0.0.1", 0))
        _, own = backend.hold_ports("127.0.0.1")
        assert not can_connect(own)
        waiting = threading.Thread(target=backend.meet, args=({1: there.getsockname(), 2: missing.getsockname()},))
        waiting.start()
        told = ""
        while "\n" not in told:
            told += capsys.readouterr().err
        assert re.search(r"MultiWorkerMirroredStrategy.* 2\b", told)
        assert can_connect(own)
        missing.listen()
        waiting.join()
    backend.ClusterMember.end()
    assert not can_connect(own)


# -- arguments --------------------------------------------------------------------------------


def test_only_a_dataset_of_tensorflow_is_prepared() -> None:
    with pytest.raises(ConfigError, match=r"tf\.data\.Dataset.*int.*to_tf"):
        prepare_dataset_shard(3)


def test_both_names_of_the_configuration_are_taken_but_not_at_once() -> None:
    config = TensorflowConfig()
    assert TensorflowTrainer(raises_in_driver, tensorflow_config=config).backend_config is config
    assert TensorflowTrainer(raises_in_driver, tensorflow_backend=config).backend_config is config
    with pytest.raises(ConfigError, match=r"tensorflow_config.*tensorflow_backend"):
        TensorflowTrainer(raises_in_driver, tensorflow_config=config, tensorflow_backend=config)
    with pytest.raises(ConfigError, match=r"dict.*TensorflowConfig"):
        TensorflowTrainer(raises_in_driver, tensorflow_config={})  # type: ignore[arg-type]


def test_the_backend_prefers_tf_keras_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.train.tensorflow import backend

    assert TensorflowBackend().environment(TensorflowConfig())["TF_USE_LEGACY_KERAS"] == "1"
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert "TF_USE_LEGACY_KERAS" not in TensorflowBackend().environment(TensorflowConfig())


def test_without_tf_keras_the_advice_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert "pip install --no-deps tf_keras" in backend.keras3_advice("fit")


def test_methods_of_keras_3_that_fail_under_several_workers_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras
    import tensorflow as tf

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    backend._CORRECTIONS.install()
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", tf.distribute.OneDeviceStrategy)
    rows = np.ones((2, 2))
    for method in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
        with pytest.raises(ConfigError, match=rf"Keras 3.*{method}\(\).*HorovodTrainer"):
            getattr(model, method)(rows, np.ones(2))
    assert model.predict(rows, verbose=0).shape == (2, 1)
