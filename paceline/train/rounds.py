"""Rounds of a library as iterations: reported by a loop of ours, or by a callback in the user's train function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import session as session_slot
from paceline.air.checks import check_bool, whole_number
from paceline.air.errors import ConfigError, MetricError, StopTraining

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.run.alignment import Reduce


class Rounds:
    """One row per boosting round or training iteration, on every rank.

    A round is known to be the last one only when the library returns: it may stop early, or the run may be
    stopped at a row. So the final checkpoint is added to the row that was reported last.
    """

    def __init__(
        self, frequency: int, at_end: bool, make_checkpoint: Callable[[], Checkpoint], *, can_continue: bool = True
    ) -> None:
        """A checkpoint after every `frequency` rounds (0: none), when the run asks for one, and `at_end`: one of the
        last round. If the library cannot continue from a checkpoint, a preempted run saves none: the next attempt
        trains all rounds again."""
        self._frequency = frequency
        self._at_end = at_end
        self._make_checkpoint = make_checkpoint
        self._session = session_slot.required("This loop reports its rounds to the run that a trainer started.")
        self._lacks_checkpoint = False
        self._can_continue = can_continue

    @property
    def has_rows(self) -> bool:
        """True if an attempt before this one reported rows, up to the checkpoint that this one starts from.

        One that has all rounds then needs no row of its own: the attempt was lost after its last one.
        """
        return self._session.rows_before > 0

    def report(
        self, done: int, metrics: Mapping[str, Any], reduce: Mapping[str, Reduce] | None = None
    ) -> dict[str, float] | None:
        """Hand in the row after `done` rounds; gives the values that were reduced over the ranks.

        Raises StopTraining when the run ends here: call `end()` then as well.
        """
        due = bool(self._frequency) and done % self._frequency == 0
        if self._can_continue:
            due |= self._session.should_checkpoint()
        self._lacks_checkpoint = not due
        return self._session.report(metrics, self._make_checkpoint() if due else None, reduce or None)

    def warn(self, text: str) -> None:
        """Tell the user something that was found out while training."""
        self._session.warn(text)

    def end(self, stopped: StopTraining | None = None) -> None:
        """Training is over, because the run `stopped` it or otherwise: the model of the last row is kept."""
        if stopped is not None and stopped.continues and not self._can_continue:
            return
        if self._at_end and self._lacks_checkpoint:
            self._lacks_checkpoint = False
            self._session.add_checkpoint(self._make_checkpoint())


class RoundReporter:
    """The ReportCallback of a tree library, which a train function of the user's gives to the library's own train.

    `metrics` chooses what is reported: None for everything as "<dataset>-<metric>", one such key, a list of them, or a
    dict of new names to keys. Every `frequency` rounds, and when the run asks for it, there is a checkpoint, with the
    model as the file `filename`.
    """

    CHECKPOINT_NAME: ClassVar[str]
    _none_computed: ClassVar[str]
    """What to do where the library computes no metric at all."""

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str | None = None,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self._names_to_keys = names_to_keys(metrics, example="valid-rmse")
        self._filename = self.CHECKPOINT_NAME if filename is None else filename
        self._frequency = whole_number(frequency, "frequency", least=0, advice="a checkpoint every so many rounds.")
        check_bool(checkpoint_at_end, "checkpoint_at_end")
        self._checkpoint_at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn

    def _is_due(self, done: int) -> bool:
        """Whether to save after `done` rounds. Every rank asks the run each time."""
        return session_slot.active().should_checkpoint() or (self._frequency > 0 and done % self._frequency == 0)

    def _chosen(self, row: dict[str, Any]) -> dict[str, Any]:
        """What to report of a round's metrics by "<dataset>-<metric>"."""
        if self._names_to_keys is None:
            return row
        missing = [key for key in self._names_to_keys.values() if key not in row]
        if missing:
            computed = ", ".join(row) or f"nothing: {self._none_computed}"
            raise MetricError(f"ReportCallback(metrics=...): no {', '.join(missing)}. Computed was {computed}.")
        return {name: row[key] for name, key in self._names_to_keys.items()}


def names_to_keys(metrics: Any, *, example: str) -> dict[str, str] | None:
    """`metrics` is one key of the library's, a list of keys, or a dict of new names to keys; None: all of them."""
    if metrics is None or isinstance(metrics, Mapping):
        return None if metrics is None else dict(metrics)
    keys = [metrics] if isinstance(metrics, str) else metrics
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise ConfigError(
            f"metrics is {metrics!r}: give a key such as {example!r}, a list of keys, or a dict of new names to keys."
        )
    return {key: key for key in keys}
