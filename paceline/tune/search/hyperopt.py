"""Search with HyperOpt's tree-structured Parzen estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.air.checks import is_number, whole_number
from paceline.air.errors import ConfigError
from paceline.tune.search.model_searcher import Encoded, ModelSearcher

if TYPE_CHECKING:
    from paceline.tune.search.hyperopt_space import HyperOptSpace


class HyperOptSearch(ModelSearcher["HyperOptSpace"]):
    """Suggests configurations with HyperOpt.

    Args:
        space: By default the domains in the Tuner's param_space. Or an expression of HyperOpt,
            in which ``hp.choice`` may hold further parameters.
        metric, mode: By default those of TuneConfig.
        points_to_evaluate: Configurations to begin with; for an expression of HyperOpt, the
            values of its labels, with positions for ``hp.choice``.
        n_initial_points: How many configurations are random, before there is enough to learn from.
        random_state_seed: Makes the search repeatable.
        gamma: The share of the best trials that new suggestions shall be like.

    A trial that a scheduler stopped early counts with its last value. A trial that failed, or
    whose metric is missing or not a number, is not learnt from.

    Restoring a search takes no time for a param_space and for expressions whose labels can be told
    from a configuration. Where two options of an ``hp.choice`` look the same, suggestions are
    made again, which takes as long as it did at first.
    """

    def __init__(
        self,
        space: Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
    ) -> None:
        _require_hyperopt()
        super().__init__(space, metric, mode, points_to_evaluate, random_state_seed)
        if isinstance(self._metric, list):
            raise ConfigError("HyperOptSearch has one metric: use OptunaSearch for several goals at once.")
        if not is_number(gamma) or not 0 < gamma < 1:
            raise ConfigError(f"gamma is {gamma!r}: give a share between 0 and 1.")
        self._n_initial_points = whole_number(n_initial_points, "n_initial_points", least=1)
        self._gamma = gamma
        self._domain: Any = None
        self._history = _History()
        self._trials: dict[int, dict[str, Any]] = {}
        """HyperOpt's record of each unfinished suggestion."""

    # The model

    def _read_space(self, given: Any) -> HyperOptSpace:
        from paceline.tune.search.hyperopt_space import HyperOptSpace

        return HyperOptSpace.read(given)

    def _build(self) -> None:
        from hyperopt.base import Domain

        for point in self._points:
            self._space.labels_of_point(point, {})
        self._domain = Domain(None, self._space.expression)

    def _ask(self, number: int) -> tuple[Encoded, dict[str, Any]]:
        from hyperopt import rand, tpe

        point = self._point(number)
        suggest = (
            rand.suggest
            if point
            else partial(tpe.suggest, n_startup_jobs=self._n_initial_points, gamma=self._gamma, verbose=False)
        )
        # numpy takes a list of numbers for a seed
        (trial,) = suggest([len(self._history)], self._domain, self._history, [self._seed, number])
        drawn = {label: values[0] for label, values in trial["misc"]["vals"].items() if len(values)}
        labels = self._space.exact(drawn)
        if point:
            labels = self._space.labels_of_point(point, labels)
        self._recall(number, labels)
        return labels, self._space.suggestion(labels)

    def _recall(self, number: int, encoded: Encoded) -> None:
        self._trials[number] = self._history.add(self._domain, encoded)

    def _tell(self, number: int, values: list[float] | None) -> None:
        self._finish(self._trials.pop(number), values)

    def _learn(self, encoded: Encoded, values: list[float] | None) -> None:
        self._finish(self._history.add(self._domain, encoded), values)

    def _finish(self, trial: dict[str, Any], values: list[float] | None) -> None:
        from hyperopt import JOB_STATE_DONE, JOB_STATE_ERROR, STATUS_OK

        if values is None:
            trial["state"] = JOB_STATE_ERROR
            return
        trial["state"] = JOB_STATE_DONE
        trial["result"] = {"status": STATUS_OK, "loss": values[0] if self._mode == "min" else -values[0]}

    def _encoded(self, config: Mapping[str, Any]) -> Encoded | None:
        return self._space.labels(config)


class _History:
    """The trials in the form that HyperOpt's algorithms read; its own Trials copies each of them and checks it."""

    def __init__(self) -> None:
        self._all: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """What can be learnt from: unfinished ones count as the worst, so that others keep away from them."""
        from hyperopt import JOB_STATE_ERROR

        return [trial for trial in self._all if trial["state"] != JOB_STATE_ERROR]

    def new_trial_docs(
        self, tids: list[int], specs: list[Any], results: list[dict[str, Any]], miscs: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        from hyperopt import Trials

        documents: list[dict[str, Any]] = Trials().new_trial_docs(tids, specs, results, miscs)
        return documents

    def add(self, domain: Any, labels: Mapping[str, Any]) -> dict[str, Any]:
        """A trial with these labels that has not ended."""
        number = len(self._all)
        places = {label: [number] if label in labels else [] for label in domain.params}
        values = {label: [labels[label]] if label in labels else [] for label in domain.params}
        misc = {"tid": number, "cmd": domain.cmd, "workdir": domain.workdir, "idxs": places, "vals": values}
        (trial,) = self.new_trial_docs([number], [None], [domain.new_result()], [misc])
        self._all.append(trial)
        return trial


def _require_hyperopt() -> None:
    """Say which extra to install, if HyperOpt is missing."""
    try:
        import hyperopt  # noqa: F401
    except ImportError as problem:
        raise ImportError(f"HyperOptSearch needs HyperOpt ({problem}): pip install 'paceline[hyperopt]'") from problem
