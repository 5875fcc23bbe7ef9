"""Callbacks in a training that goes on from a checkpoint: they find what they would find without the break."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paceline.air import session as session_slot
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError
from paceline.train.lightgbm.checkpoint import BoosterObject, Details, LightGBMCheckpoint
from paceline.train.lightgbm.metrics import FIRST
from paceline.train.lightgbm.params import value_of

if TYPE_CHECKING:
    import lightgbm as lgb
    from lightgbm.callback import CallbackEnv

    from paceline.train.lightgbm.features import Features


@dataclass
class BoostingProgress:
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
        return LightGBMCheckpoint._of(BoosterObject(self.model, details))


def earlier_progress() -> BoostingProgress:
    """Where the run's newest checkpoint left off, or the one that it was started from."""
    checkpoint = session_slot.get_checkpoint()
    if checkpoint is None:
        return BoostingProgress()
    earlier = LightGBMCheckpoint.from_checkpoint(checkpoint)
    model, details = earlier.get_model(), earlier.details()
    rounds = model.current_iteration() if details.rounds is None else details.rounds
    whole = len(details.evaluations) == rounds
    return BoostingProgress(model, details.features, details.evaluations if whole else [], rounds)


Callback = Callable[["CallbackEnv"], None]


def in_order(callbacks: Sequence[Callback]) -> list[Callback]:
    """As LightGBM calls them: by the `order` that they have; those without one come first, as they were given."""
    places = {
        id(callback): getattr(callback, "order", place - len(callbacks)) for place, callback in enumerate(callbacks)
    }
    return sorted(callbacks, key=lambda callback: places[id(callback)])


def continued(callback: Callback, progress: BoostingProgress) -> Callback:
    """The callback for the rounds that follow those of `progress`."""
    return callback if progress.model is None else FromTheStart(callback, progress)


def replay(
    callbacks: Sequence[Callback], params: Mapping[str, Any], rounds: int, progress: BoostingProgress
) -> int | None:
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

    def __init__(self, callback: Callback, progress: BoostingProgress) -> None:
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


# -- LightGBM's random numbers ---------------------------------------------------------------------
# A model file does not hold the state of LightGBM's generators: a continued training would draw the rows and columns of
# the first rounds once more. Here they are drawn again up to where the checkpoint was, without training: rounds that
# cannot split anything draw rows, and each change of parameters draws columns.


_NO_SPLIT = 1e300


def is_random_forest(params: Mapping[str, Any]) -> bool:
    return value_of(params, "boosting") in ("rf", "random_forest")


def check_continuable(params: Mapping[str, Any]) -> None:
    if is_random_forest(params):
        raise ConfigError(
            "A random forest (boosting='rf') cannot continue from a checkpoint: LightGBM offers no way. Train it in "
            "one go: without resume_from_checkpoint, and without CheckpointConfig(checkpoint_frequency=...), so that "
            "an attempt after a failure starts from the beginning."
        )


def not_repeatable(params: Mapping[str, Any], rounds: int) -> str | None:
    """Why trees after a break will differ from those without it; None if they are the same."""
    if value_of(params, "boosting") == "dart":
        return "boosting='dart' cannot drop the trees of a checkpoint"
    if "goss" in (value_of(params, "boosting"), value_of(params, "data_sample_strategy")):
        return "GOSS draws rows by what it has seen in earlier rounds"
    if value_of(params, "extra_trees", False):
        return "extra_trees draws anew"
    if float(value_of(params, "feature_fraction_bynode", 1.0)) < 1:
        return "feature_fraction_bynode draws anew"
    frequency = _bagging_frequency(params)
    if frequency and rounds % frequency:
        return (
            f"rows are drawn every {frequency} rounds (bagging_freq), of which the checkpoint's {rounds} are no "
            "multiple: choose checkpoint_frequency so"
        )
    if frequency > 1 and _draws_queries(params):
        return "rank_xendcg draws in every round, and bagging_freq rows more seldom"
    return None


class CatchUp:
    """Before the first round, brings the generators to where they were after the rounds of the checkpoint."""

    def __init__(self, params: Mapping[str, Any], progress: BoostingProgress) -> None:
        self.order = FIRST
        self.before_iteration = True
        self._params = params
        self._rounds = progress.rounds
        assert progress.model is not None
        self._column_seed = int(progress.model.params.get("feature_fraction_seed", 2))

    def __call__(self, env: CallbackEnv) -> None:
        if env.iteration == env.begin_iteration:
            self._draw_rows(env.model)
            self._draw_columns(env.model)

    def _draw_rows(self, model: Any) -> None:
        frequency = _bagging_frequency(self._params) or int(_draws_queries(self._params))
        if not frequency:
            return
        objective = value_of(self._params, "objective")
        self._reset(model, min_gain_to_split=_NO_SPLIT)
        for _ in range(self._rounds // frequency):
            model.update(fobj=objective if callable(objective) else None)
        self._reset(model, min_gain_to_split=value_of(self._params, "min_gain_to_split", 0.0))

    def _draw_columns(self, model: Any) -> None:
        if float(value_of(self._params, "feature_fraction", 1.0)) >= 1:
            return
        self._reset(model, feature_fraction_seed=self._column_seed + 1)
        self._reset(model, feature_fraction_seed=self._column_seed)  # another seed than before begins its numbers anew
        for _ in range(self._rounds * model.num_model_per_iteration()):
            self._reset(model)

    def _reset(self, model: Any, **changes: Any) -> None:
        verbosity = -1 if changes.get("min_gain_to_split") == _NO_SPLIT else value_of(self._params, "verbosity")
        model.reset_parameter({"verbosity": verbosity, **changes})


def _bagging_frequency(params: Mapping[str, Any]) -> int:
    """Rows are drawn every so many rounds; 0: never."""
    fractions = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
    drawn = any(float(value_of(params, name, 1.0)) < 1 for name in fractions)
    return int(value_of(params, "bagging_freq", 0)) if drawn else 0


def _draws_queries(params: Mapping[str, Any]) -> bool:
    return value_of(params, "objective") in ("rank_xendcg", "xendcg", "xe_ndcg", "xe_ndcg_mart", "xendcg_mart")
