"""Callbacks of Keras that report what `fit` computes, with checkpoints of the model.

They are callbacks of the Keras that `tf.keras` is where they are made: a driver can name them without loading
TensorFlow, and with another Keras than its workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable as Function
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from paceline.air import session
from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError, MetricError
from paceline.train.rounds import names_to_keys
from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint

Metrics = str | Sequence[str] | Mapping[str, str] | None

EVENTS = (
    *("train_begin", "train_end", "epoch_begin", "epoch_end", "train_batch_begin", "train_batch_end"),
    *("test_begin", "test_end", "test_batch_begin", "test_batch_end"),
    *("predict_begin", "predict_end", "predict_batch_begin", "predict_batch_end"),
)


class _KerasCallback:
    """Becomes a callback of the Keras in use when an object is made."""

    model: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        kind: Any = cls
        made: Self = object.__new__(_as_keras_callback(kind))
        return made

    def _listen(self, event: str, action: Function[[Mapping[str, Any]], None]) -> None:
        """Call `action` with the logs of an event, after what a subclass does there.

        Only events that are asked for are listened to: for each batch, listening costs Keras a wait.
        """
        name = f"on_{event}"
        before = getattr(self, name)

        def hook(*args: Any, **kwargs: Any) -> None:
            before(*args, **kwargs)
            logs = kwargs.get("logs", args[-1] if args else None)
            action(logs if isinstance(logs, Mapping) else {})

        setattr(self, name, hook)


class ReportCheckpointCallback(_KerasCallback):
    """Reports the metrics of Keras, each time with or without a checkpoint of the model.

        model.fit(x, y, epochs=3, callbacks=[ReportCheckpointCallback()])

    `report_metrics_on` and `checkpoint_on` are events of Keras, one or a list: "epoch_end", "train_batch_end",
    "test_end", ... `metrics` chooses what is reported: None for everything, one name, a list of them, or a dict of
    new names to those of Keras. An event of `checkpoint_on` alone is reported too, with the metrics there are. When the
    run asks for a checkpoint (`train.should_checkpoint()`), the next event brings one.
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: Metrics = None,
    ) -> None:
        super().__init__()
        with_checkpoint = _events(checkpoint_on, "checkpoint_on")
        with_metrics = _events(report_metrics_on, "report_metrics_on")
        self._chosen = names_to_keys(metrics, example="val_loss")
        for event in dict.fromkeys([*with_metrics, *with_checkpoint]):
            action = functools.partial(self._report, event in with_metrics, event in with_checkpoint)
            self._listen(event, action)

    def _report(self, with_metrics: bool, with_checkpoint: bool, logs: Mapping[str, Any]) -> None:
        row = _row(logs, self._chosen, all_of_them=with_metrics)
        saves = session.active().should_checkpoint() or with_checkpoint
        session.report(row, checkpoint=TensorflowCheckpoint.from_model(self.model) if saves else None)


class Callback(_KerasCallback):
    """The older form: reports at each event of `on`, and with every `frequency`-th of them a checkpoint.

    `frequency` may be a list with a number for each event; 0 is for no checkpoints.
    """

    def __init__(
        self,
        metrics: Metrics = None,
        on: str | Sequence[str] = "epoch_end",
        frequency: int | Sequence[int] = 1,
    ) -> None:
        super().__init__()
        self._chosen = names_to_keys(metrics, example="val_loss")
        events = _events(on, "on")
        for event, every in zip(events, _frequencies(frequency, events), strict=True):
            self._listen(event, _Every(every, self._report))

    def _report(self, with_checkpoint: bool, logs: Mapping[str, Any]) -> None:
        row = _row(logs, self._chosen, all_of_them=True)
        saves = session.active().should_checkpoint() or with_checkpoint
        session.report(row, checkpoint=self._checkpoint() if saves else None)

    def _checkpoint(self) -> Checkpoint:
        return TensorflowCheckpoint.from_model(self.model)


class _Every:
    """Counts the calls: every so many of them, a checkpoint is due."""

    def __init__(self, every: int, report: Function[[bool, Mapping[str, Any]], None]) -> None:
        self._every = every
        self._report = report
        self._calls = 0

    def __call__(self, logs: Mapping[str, Any]) -> None:
        self._calls += 1
        self._report(self._every > 0 and self._calls % self._every == 0, logs)


@functools.cache
def _as_keras_callback(cls: Any) -> Any:
    import tensorflow as tf

    base = tf.keras.callbacks.Callback
    return cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__module__": cls.__module__})


def _row(logs: Mapping[str, Any], chosen: Mapping[str, str] | None, *, all_of_them: bool) -> dict[str, Any]:
    if chosen is None:
        return dict(logs)
    missing = [key for key in chosen.values() if key not in logs]
    if missing and all_of_them:
        raise MetricError(
            f"metrics={list(chosen.values())}: Keras computed no {', '.join(missing)}. There is "
            f"{', '.join(logs) or 'nothing'}: name metrics in compile(metrics=[...]), and those of validation_data "
            "with val_ in front."
        )
    return {name: logs[key] for name, key in chosen.items() if key in logs}


def _events(given: Any, name: str) -> list[str]:
    events = [given] if isinstance(given, str) else given
    if not isinstance(events, Sequence) or not all(event in EVENTS for event in events):
        raise ConfigError(f"{name} is {given!r}: use one or a list of {', '.join(EVENTS)}.")
    return list(events)


def _frequencies(frequency: Any, events: Sequence[str]) -> list[int]:
    each = list(frequency) if isinstance(frequency, Sequence) else [frequency] * len(events)
    if len(each) != len(events):
        raise ConfigError(f"frequency is {frequency!r}: give one number, or one for each of {', '.join(events)}.")
    return [whole_number(every, "frequency", least=0, advice="A checkpoint every so many times.") for every in each]
