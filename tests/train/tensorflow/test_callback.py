"""The callbacks of Keras: which events they report, under which names, and with which checkpoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paceline.air import session
from paceline.air.errors import ConfigError, MetricError
from paceline.air.integrations import keras as integration
from paceline.train.tensorflow import RayTrainReportCallback, ReportCallback

Callback, ReportCheckpointCallback = integration.Callback, integration.ReportCheckpointCallback


class Reports:
    """Takes the place of a session, and keeps what is reported."""

    def __init__(self) -> None:
        self.rows: list[tuple[list[str], bool]] = []
        self.asks_at: set[int] = set()
        """The reports for which the run asks for a checkpoint, from 1 on."""

    def should_checkpoint(self) -> bool:
        return len(self.rows) + 1 in self.asks_at

    def report(
        self, metrics: dict[str, Any], checkpoint: Any = None, reduce: Any = None, validation: Any = None
    ) -> None:
        self.rows.append((list(metrics), checkpoint is not None))


@pytest.fixture
def reports() -> Iterator[Reports]:
    fake: Any = Reports()
    session.install(fake)
    yield fake
    session.install(None)


def fit(callback: Any, epochs: int = 2) -> None:
    """Two batches an epoch, and a validation."""
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"], run_eagerly=True)  # tracing takes a second
    rows = np.ones((4, 2)), np.ones(4)
    model.fit(*rows, batch_size=2, epochs=epochs, validation_data=rows, verbose=0, callbacks=[callback])


def test_every_epoch_is_reported_with_a_checkpoint_by_default(reports: Reports) -> None:
    fit(ReportCheckpointCallback())
    assert reports.rows == [(["loss", "mae", "val_loss", "val_mae"], True)] * 2


@pytest.mark.parametrize("kind", [Callback, ReportCheckpointCallback])
def test_the_run_may_ask_for_a_checkpoint(reports: Reports, kind: Any) -> None:
    reports.asks_at = {2}
    fit(kind(frequency=0) if kind is Callback else kind(checkpoint_on=[]), 3)
    assert [with_checkpoint for _, with_checkpoint in reports.rows] == [False, True, False]


def test_metrics_and_checkpoints_have_events_of_their_own(reports: Reports) -> None:
    fit(ReportCheckpointCallback(checkpoint_on="train_end", report_metrics_on=["train_batch_end", "epoch_end"]), 1)
    batch, epoch = (["loss", "mae"], False), (["loss", "mae", "val_loss", "val_mae"], False)
    assert reports.rows[:3] == [batch, batch, epoch]
    assert [with_checkpoint for _, with_checkpoint in reports.rows] == [False, False, False, True]


def test_metrics_are_chosen_and_renamed(reports: Reports) -> None:
    fit(ReportCheckpointCallback(metrics={"error": "val_mae"}), 1)
    fit(ReportCheckpointCallback("test_end", "epoch_end", metrics=["val_loss"]), 1)
    fit(ReportCheckpointCallback(metrics="mae"), 1)
    assert reports.rows == [(["error"], True), ([], True), (["val_loss"], False), (["mae"], True)]
    with pytest.raises(MetricError, match=r"accuracy.*loss, mae"):
        fit(ReportCheckpointCallback(metrics=["accuracy"]))


def test_the_older_callback_saves_every_so_many_times(reports: Reports) -> None:
    fit(Callback(metrics="loss", frequency=2), 3)
    assert [with_checkpoint for _, with_checkpoint in reports.rows] == [False, True, False]
    reports.rows.clear()
    fit(Callback("loss", on=["epoch_end", "train_batch_end"], frequency=[1, 0]), 1)
    assert [with_checkpoint for _, with_checkpoint in reports.rows] == [False, False, True]


def test_they_are_callbacks_of_the_keras_in_use() -> None:
    import keras
    import tensorflow as tf

    assert tf.keras.callbacks.Callback is keras.callbacks.Callback
    for kind in (Callback, ReportCheckpointCallback):
        assert isinstance(kind(), keras.callbacks.Callback)
        assert isinstance(kind(), kind)
    assert ReportCallback is RayTrainReportCallback is ReportCheckpointCallback


def test_mistakes_are_told_when_a_callback_is_made() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_on.*'epoch'.*epoch_end"):
        ReportCheckpointCallback(checkpoint_on="epoch")
    with pytest.raises(ConfigError, match=r"\bon\b.*3.*epoch_end"):
        Callback(on=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"metrics.*3.*dict"):
        Callback(metrics=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"frequency.*\[1, 2\].*epoch_end"):
        Callback(frequency=[1, 2])
    with pytest.raises(ConfigError, match=r"frequency.*-1"):
        Callback(frequency=-1)


def test_no_name_loads_tensorflow() -> None:
    program = (
        "import sys\n"
        "from paceline.train.tensorflow import *\n"
        "from paceline.air.integrations.keras import Callback, ReportCheckpointCallback\n"
        "print([name for name in ('tensorflow', 'keras', 'tf_keras', 'h5py') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
