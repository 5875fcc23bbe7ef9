"""Search with HyperOpt's tree-structured Parzen estimators."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from paceline.air.checks import is_number, near_miss, whole_number
from paceline.air.errors import ConfigError
from paceline.tune.search.domains import Categorical, Normal, Quantized, index_of
from paceline.tune.search.model_searcher import Encoded, ModelSearcher
from paceline.tune.search.parameters import Parameter, Parameters, parameters_of
from paceline.tune.search.sample import Float, Integer
from paceline.tune.search.space import find


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


Labels = dict[str, Any]
"""The values of those of HyperOpt's labels that are in use."""


class HyperOptSpace(ABC):
    """Between HyperOpt's labels and configurations."""

    expression: Any

    @staticmethod
    def read(space: Any) -> HyperOptSpace:
        """The kind of space that the user gave."""
        if isinstance(space, Mapping):
            found = find(space)
            if found.texts or not _has_labels(space):
                return HyperOptDomains(parameters_of(space, "HyperOptSearch", all_by_index=True, normal=True))
        return LabelSpace(space)

    def exact(self, labels: Mapping[str, Any]) -> Labels:
        """What the model came up with, as plain values that a configuration can be made of and told from."""
        return {label: getattr(value, "item", lambda value=value: value)() for label, value in labels.items()}

    @abstractmethod
    def suggestion(self, labels: Labels) -> dict[str, Any]:
        """The configuration that the labels make."""

    @abstractmethod
    def labels(self, config: Mapping[str, Any]) -> Labels | None:
        """The labels that make this configuration; None where they cannot be told from it."""

    @abstractmethod
    def labels_of_point(self, point: Mapping[str, Any], drawn: Labels) -> Labels:
        """The labels of a point to evaluate; `drawn` is for what it leaves open."""


class HyperOptDomains(HyperOptSpace):
    """A param_space with domains of tune: each parameter is a label."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.expression = {name: expression_of(each) for name, each in parameters.by_name.items()}

    def exact(self, labels: Mapping[str, Any]) -> Labels:
        # Rounding can lead out of a domain, or between two of its values.
        by_name = self._parameters.by_name
        plain = super().exact(labels)
        return {name: each.encode(each.decode(plain[name])) for name, each in by_name.items()}

    def suggestion(self, labels: Labels) -> dict[str, Any]:
        return self._parameters.suggestion(labels)

    def labels(self, config: Mapping[str, Any]) -> Labels | None:
        labels = self._parameters.encode(config)
        return labels if len(labels) == len(self._parameters.by_name) else None

    def labels_of_point(self, point: Mapping[str, Any], drawn: Labels) -> Labels:
        self._parameters.check_point(point)
        return {**drawn, **self._parameters.encode(point)}


class LabelSpace(HyperOptSpace):
    """An expression of HyperOpt, in which labels may depend on others."""

    def __init__(self, space: Any) -> None:
        from hyperopt.pyll import as_apply, dfs

        self.expression = as_apply(space)
        self._known = [node.arg["label"].obj for node in dfs(self.expression) if node.name == "hyperopt_param"]
        if not self._known:
            raise ConfigError(f"space is {space!r}: give HyperOptSearch domains of tune, or hp.uniform() and the like.")

    def suggestion(self, labels: Labels) -> dict[str, Any]:
        from hyperopt import space_eval

        config = space_eval(self.expression, labels)
        if not isinstance(config, dict):
            raise ConfigError(f"The space of HyperOptSearch gave {config!r}: let it be a dictionary of parameters.")
        return config

    def labels(self, config: Mapping[str, Any]) -> Labels | None:
        return _matching(self.expression, config)

    def labels_of_point(self, point: Mapping[str, Any], drawn: Labels) -> Labels:
        for label in point:
            if label not in self._known:
                raise ConfigError(f"points_to_evaluate has the label {label!r}{near_miss(label, self._known)}")
        labels = dict(point)
        try:
            self.suggestion(labels)
        except Exception as problem:  # HyperOpt has no error of its own for a label without a value
            raise ConfigError(
                f"points_to_evaluate has {labels!r}, which makes no configuration: give every label that is in use, "
                f"and the position of the option for hp.choice ({problem!r})."
            ) from problem
        return labels


def expression_of(parameter: Parameter) -> Any:
    """A domain in HyperOpt's words, for the encoded values.

    Whole numbers are roundings of a range that reaches half a step further: so the bounds
    are as likely as the rest, and the model knows that neighbours are alike.
    """
    from hyperopt import hp

    label, domain = parameter.name, parameter.domain
    if isinstance(domain, Categorical):
        return hp.choice(label, list(range(len(domain))))
    assert isinstance(domain, Float | Integer)
    scale = domain.q if parameter.by_factor else 1
    sampler = domain.sampler.inner if isinstance(domain.sampler, Quantized) else domain.sampler
    if isinstance(sampler, Normal):
        if parameter.by_factor:
            return hp.qnormal(label, sampler.mean / scale, sampler.sd / scale, 1)
        return hp.normal(label, sampler.mean, sampler.sd)
    if isinstance(domain, Float) and not parameter.by_factor:
        if domain.is_log:
            return hp.loguniform(label, math.log(domain.lower), math.log(domain.upper))
        return hp.uniform(label, domain.lower, domain.upper)
    largest = domain.largest if isinstance(domain, Integer) else domain.upper
    step = 1 if parameter.by_factor else domain.q or 1
    lower, upper = domain.lower / scale - step / 2, largest / scale + step / 2
    if domain.is_log:
        return hp.qloguniform(label, math.log(lower), math.log(upper), step)
    return hp.quniform(label, lower, upper, step)


def _has_labels(space: Any) -> bool:
    from hyperopt.pyll import as_apply, dfs

    return any(node.name == "hyperopt_param" for node in dfs(as_apply(space)))


def _matching(node: Any, value: Any) -> Labels | None:
    """The labels with which an expression gives `value`; None if there are none, or several ways."""
    if node.name == "literal":
        return {} if index_of(value, (node.obj,)) is not None else None
    if node.name in ("float", "int"):
        return _matching(node.pos_args[0], value)
    if node.name == "hyperopt_param":
        return {node.arg["label"].obj: value} if is_number(value) else None
    if node.name == "switch":
        choice, *options = node.pos_args
        label = choice.arg["label"].obj if choice.name == "hyperopt_param" else None
        ways = [
            (place, found) for place, option in enumerate(options) if (found := _matching(option, value)) is not None
        ]
        return {label: ways[0][0], **ways[0][1]} if label and len(ways) == 1 else None
    if node.name == "dict":
        if not isinstance(value, Mapping) or not {key for key, _ in node.named_args} <= value.keys():
            return None
        return _all_matching([(inner, value[key]) for key, inner in node.named_args])
    if node.name == "pos_args":
        if not isinstance(value, list | tuple) or len(value) != len(node.pos_args):
            return None
        return _all_matching(list(zip(node.pos_args, value, strict=True)))
    return None


def _all_matching(pairs: list[tuple[Any, Any]]) -> Labels | None:
    labels: Labels = {}
    for node, value in pairs:
        found = _matching(node, value)
        if found is None:
            return None
        labels.update(found)
    return labels
