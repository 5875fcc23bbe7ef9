"""Callbacks in a training that goes on from a checkpoint: they find what they would find without the break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paceline.air import session as session_slot
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.train.lightgbm.checkpoint import Details, LightGBMCheckpoint

if TYPE_CHECKING:
    import lightgbm as lgb
    from lightgbm.callback import CallbackEnv

    from paceline.train.lightgbm.features import Features


@dataclass
class Progress:
    """The model so far, and what belongs to it."""

    model: lgb.Booster | None = None
    features: Features | None = None
    evaluations: list[list[list[Any]]] = field(default_factory=list)
    """Of all its rounds, unless it comes from elsewhere."""
    rounds: int = 0
    """How many were trained; the model has fewer where nothing could be split."""

    def checkpoint(self) -> LightGBMCheckpoint:
        assert self.model is not None
        details = Details(self.model.best_iteration, self.features, self.evaluations, self.rounds)
        return LightGBMCheckpoint._of(self.model, details)


def earlier_progress() -> Progress:
    """Where the run's newest checkpoint left off, or the one that it was started from."""
    checkpoint = session_slot.get_checkpoint()
    if checkpoint is None:
        return Progress()
    earlier = LightGBMCheckpoint.from_checkpoint(checkpoint)
    model, details = earlier.get_model(), earlier.details()
    rounds = model.current_iteration() if details.rounds is None else details.rounds
    whole = len(details.evaluations) == rounds
    return Progress(model, details.features, details.evaluations if whole else [], rounds)


Callback = Callable[["CallbackEnv"], None]


def in_order(callbacks: Sequence[Callback]) -> list[Callback]:
    """As LightGBM calls them: by the `order` that they have; those without one come first, as they were given."""
    places = {
        id(callback): getattr(callback, "order", place - len(callbacks)) for place, callback in enumerate(callbacks)
    }
    return sorted(callbacks, key=lambda callback: places[id(callback)])


def continued(callback: Callback, progress: Progress) -> Callback:
    """The callback for the rounds that follow those of `progress`."""
    return callback if progress.model is None else FromTheStart(callback, progress)


def replay(callbacks: Sequence[Callback], params: Mapping[str, Any], rounds: int, progress: Progress) -> int | None:
    """Let LightGBM's own callbacks see the rounds before the break.

    Gives the best iteration if one of them had already stopped the training, else None.
    """
    from lightgbm import EarlyStopException
    from lightgbm.basic import EvalResult
    from lightgbm.callback import CallbackEnv

    if progress.model is None:
        return None
    progress.model.set_train_data_name(TRAIN_DATASET_KEY)  # early stopping does not go by it
    for index, evaluations in enumerate(progress.evaluations):
        env = CallbackEnv(
            model=progress.model,
            params=dict(params),
            iteration=index,
            begin_iteration=0,
            end_iteration=rounds,
            evaluation_result_list=[EvalResult(*each) for each in evaluations],
        )
        try:
            for callback in callbacks:
                if isinstance(callback, FromTheStart) and callback.remembers:
                    callback.callback(env)
        except EarlyStopException as stop:
            return stop.best_iteration + 1
    return None


def _remembers(callback: Callback) -> bool:
    """True for callbacks of LightGBM's that depend on earlier rounds."""
    from lightgbm import early_stopping, record_evaluation

    return isinstance(callback, type(early_stopping(1)) | type(record_evaluation({})))


class FromTheStart:
    """A callback that is told that training began with the first round of the model."""

    def __init__(self, callback: Callback, progress: Progress) -> None:
        assert progress.model is not None
        self.before_iteration = getattr(callback, "before_iteration", False)
        self.callback = callback
        self._without_tree = progress.rounds - progress.model.current_iteration()
        self._seen = _names(progress.evaluations[-1]) if progress.evaluations else None
        self.remembers = _remembers(callback)

    def __call__(self, env: CallbackEnv) -> None:
        # One that knows nothing of the rounds before, or only other metrics, has to begin here.
        knows = not self.remembers or self._seen == _names(env.evaluation_result_list)
        skipped = self._without_tree  # LightGBM numbers on from the trees that there are
        self.callback(
            replace(
                env,
                iteration=env.iteration + skipped,
                begin_iteration=0 if knows else env.begin_iteration + skipped,
                end_iteration=env.end_iteration + skipped,
            )
        )


def _names(evaluations: Sequence[Any] | None) -> list[tuple[str, str]]:
    return [(dataset, metric) for dataset, metric, *_ in evaluations or ()]
