"""Search with Optuna: it does the mathematics, this tells it what to search and how trials ended."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air.checks import names_what_was_meant
from paceline.air.errors import ConfigError
from paceline.tune.search.model_searcher import Encoded, ModelSearcher, point_values

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler

    from paceline.tune.search.optuna_space import DefineByRun, Distributions, OptunaSpace


@dataclass
class _Recalled:
    """A trial of before the interruption that the study does not have yet."""

    encoded: Encoded
    distributions: Distributions
    finished: bool = False
    values: list[float] | None = None
    """None: it failed, if it is finished."""


class OptunaSearch(ModelSearcher["OptunaSpace"]):
    """Suggests configurations with one of Optuna's samplers.

    Args:
        space: By default the domains in the Tuner's param_space. Or a dictionary of
            `optuna.distributions`, or a function ``space(trial)`` that calls
            ``trial.suggest_...`` and may return further values for the configuration; there
            a parameter may exist only if another has a certain value. A name such as
            "model/layers" is a nested parameter.
        metric, mode: By default those of TuneConfig. Lists search for several goals at once;
            the best compromises are then ``searcher.study.best_trials``.
        points_to_evaluate: Configurations to begin with. Parameters they leave out are chosen.
        sampler: By default "tpe". Or "random", "gp", "cmaes", "nsga2", "nsga3", "qmc",
            "brute_force"; a class of `optuna.samplers` or a function, which get ``seed=``; or a
            sampler. For the names and classes a restored search suggests what it would have
            without the interruption. A sampler object continues with the same history, but
            its random numbers begin anew.
        seed: Makes the search repeatable.
        evaluated_rewards: The values of points_to_evaluate where they are known: they are
            learnt from and not run again.

    A trial that a scheduler stopped early counts with its last value, as if it had finished:
    so a poor configuration is avoided, and the model needs no curves. A trial that failed, or
    whose metric is missing or not a number, is not learnt from.
    """

    @names_what_was_meant(
        pruner="poor trials are ended early by a scheduler, such as TuneConfig(scheduler=ASHAScheduler())."
    )
    def __init__(
        self,
        space: dict[str, Any] | DefineByRun | None = None,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: Any = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[float | Sequence[float]] | None = None,
    ) -> None:
        require_optuna()

        super().__init__(space, metric, mode, points_to_evaluate, seed)
        self._make_sampler = sampler_factory(sampler)
        self._study: optuna.Study | None = None
        self._trials_are_enough = False
        """Whether the sampler needs nothing but a study with the same trials to continue."""
        self._exhausted = False
        self._in_study: dict[int, int] = {}
        """The study's number of each unfinished suggestion: it counts points evaluated elsewhere, too."""
        self._recalled: dict[int, _Recalled] = {}
        """By number of the suggestion. They are added together when the study is next used, which is quicker."""
        if evaluated_rewards is not None:
            self._take_rewards(evaluated_rewards)

    def _take_rewards(self, rewards: Sequence[float | Sequence[float]]) -> None:
        if len(rewards) != len(self._points):
            raise ConfigError(
                f"evaluated_rewards has {len(rewards)} value(s) for {len(self._points)} points_to_evaluate: "
                "give one for each."
            )
        points, self._points = self._points, []
        for point, reward in zip(points, rewards, strict=True):
            self._take_point(point, point_values(reward))

    @property
    def study(self) -> optuna.Study:
        """Optuna's own view of the search, for example for `optuna.visualization`.

        There, an option that is not plain data goes by its position, and a quantised number by its multiple of q.
        """
        self._prepare()
        return self._whole_study()

    # The model

    def _read_space(self, given: Any) -> OptunaSpace:
        from paceline.tune.search.optuna_space import OptunaSpace

        return OptunaSpace.read(given)

    def _build(self) -> None:
        import optuna

        for point in self._points:
            self._space.check_point(point)
        sampler = self._make_sampler(self._seed or 0, 0)
        self._trials_are_enough = reads_trials_only(sampler)
        with _quiet():
            self._study = optuna.create_study(
                directions=["minimize" if mode == "min" else "maximize" for mode in self._modes], sampler=sampler
            )
        self._study.stop = self._exhaust  # type: ignore[method-assign]

    def _exhaust(self) -> None:
        """Called by samplers that have seen the whole space; Optuna's own version wants to be in its loop."""
        self._exhausted = True

    def _ask(self, number: int) -> tuple[Encoded, dict[str, Any]] | None:
        return None if self._exhausted else self._ask_study(number)

    def _ask_study(self, number: int) -> tuple[Encoded, dict[str, Any]]:
        study = self._whole_study()
        study.sampler = self._make_sampler(self._seed or 0, number)
        point = self._space.encode(self._point(number))
        if point:
            study.enqueue_trial(point)
        trial = study.ask(self._space.fixed)
        try:
            suggestion = self._space.suggestion(trial)
        except BaseException:
            study.tell(trial, state=_failed())  # an unfinished trial would be taken into account for ever
            raise
        self._in_study[number] = trial.number
        return dict(trial.params), suggestion

    def _recall(self, number: int, encoded: Encoded) -> None:
        if not self._trials_are_enough:
            if self._ask_study(number)[0] == encoded:
                return
            self._whole_study().tell(self._in_study.pop(number), state=_failed())
            self._warn_once(
                "sampler",
                "The sampler of OptunaSearch does not repeat itself. The search continues with the trials so far, but "
                "what else the sampler had noted is lost. Seed it, or give its class or name instead of an object.",
            )
        self._recalled[number] = _Recalled(encoded, self._space.distributions(encoded))

    def _tell(self, number: int, values: list[float] | None) -> None:
        recalled = self._recalled.get(number)
        if recalled is not None:
            recalled.finished, recalled.values = True, values
            return
        assert self._study is not None
        trial = self._in_study.pop(number)
        self._study.tell(trial, values, state=_failed() if values is None else None)

    def _learn(self, encoded: Encoded, values: list[float] | None) -> None:
        self._add(self._whole_study(), _Recalled(encoded, self._space.distributions(encoded), True, values))

    def _encoded(self, config: Mapping[str, Any]) -> Encoded | None:
        encoded = self._space.encode(config)
        return encoded if self._space.is_complete(encoded) else None

    def _whole_study(self) -> optuna.Study:
        """The study, with the trials that were remembered."""
        study = self._study
        assert study is not None
        if self._recalled:
            before = len(study.get_trials(deepcopy=False))
            for in_study, (number, recalled) in enumerate(self._recalled.items(), before):
                self._add(study, recalled)
                if not recalled.finished:
                    self._in_study[number] = in_study
            self._recalled.clear()
        return study

    def _add(self, study: optuna.Study, trial: _Recalled) -> None:
        from optuna.trial import TrialState, create_trial

        state = TrialState.RUNNING
        if trial.finished:
            state = TrialState.FAIL if trial.values is None else TrialState.COMPLETE
        study.add_trial(
            create_trial(
                state=state, values=trial.values, params=trial.encoded, distributions=dict(trial.distributions)
            )
        )


def require_optuna() -> None:
    """Say which extra to install, if Optuna is missing."""
    try:
        import optuna  # noqa: F401
    except ImportError as problem:
        raise ImportError(f"OptunaSearch needs Optuna ({problem}): pip install 'paceline[tune]'") from problem


def _failed() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna writes a line about each study it makes; here that is a detail."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


SamplerFactory = Callable[[int, int], "BaseSampler"]
"""(seed, number of the suggestion) -> the sampler for it."""

_CLASSES = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "brute_force": "BruteForceSampler",
}
_SETTINGS: dict[str, dict[str, Any]] = {
    # Without constant_liar, trials that start before others have finished get nearly the same
    # parameters. Optuna advises it for parallel trials and made it the default in version 5.
    "tpe": {"constant_liar": True},
    "gp": {"warn_independent_sampling": False},
    "cmaes": {"warn_independent_sampling": False},
    # Unscrambled, the sequence begins in a corner of the space and ignores the seed.
    "qmc": {"scramble": True, "warn_independent_sampling": False},
}
"""Optuna warns of each parameter that a sampler leaves to chance, for each sampler anew: here for each trial."""
_NEEDS = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",), "qmc": ("scipy",)}


def sampler_factory(sampler: Any) -> SamplerFactory:
    """`sampler` as the user gave it: None, a name, a class or function that takes seed=, or a sampler."""
    from optuna.samplers import BaseSampler, GridSampler

    if isinstance(sampler, GridSampler) or sampler is GridSampler:
        raise ConfigError(
            "sampler is a GridSampler: write tune.grid_search([...]) in the param_space and leave search_alg out."
        )
    if isinstance(sampler, BaseSampler):
        return lambda seed, number: sampler
    if sampler is None or isinstance(sampler, str):
        return _by_name("tpe" if sampler is None else sampler.lower())
    if callable(sampler):
        return lambda seed, number: _made(sampler, seed=derived_seed(seed, number))
    raise ConfigError(
        f"sampler is {sampler!r}: give a name ({', '.join(_CLASSES)}), a sampler of optuna.samplers, its class, "
        "or a function that takes seed= and returns one."
    )


def _by_name(name: str) -> SamplerFactory:
    import optuna

    if name not in _CLASSES:
        raise ConfigError(
            f"There is no sampler {name!r}; there are: {', '.join(_CLASSES)}. (gp, a Gaussian process, is what is "
            "usually called Bayesian optimisation.)"
        )
    missing = [module for module in _NEEDS.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(f'OptunaSearch(sampler="{name}") needs {missing[0]}: pip install {" ".join(missing)}')
    sampler_class = getattr(optuna.samplers, _CLASSES[name])
    settings = _SETTINGS.get(name, {})
    if name == "qmc":
        return lambda seed, number: _made(sampler_class, seed=derived_seed(seed, 0), **settings)
    return lambda seed, number: _made(sampler_class, seed=derived_seed(seed, number), **settings)


def _made(factory: Callable[..., BaseSampler], **arguments: Any) -> BaseSampler:
    import optuna

    with warnings.catch_warnings():
        # Samplers are made for each suggestion; that one is experimental need not be said each time.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return factory(**arguments)


def reads_trials_only(sampler: BaseSampler) -> bool:
    """Whether a study with the same trials is all this sampler needs to continue (see above)."""
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    # Exactly these: a subclass may keep notes. Constraints are noted when a trial is told.
    return type(sampler) in (GPSampler, RandomSampler, TPESampler) and not getattr(sampler, "_constraints_func", None)


def derived_seed(seed: int, number: int) -> int:
    """A seed for one suggestion, below 2**32 as numpy's generators want it."""
    import numpy as np

    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
