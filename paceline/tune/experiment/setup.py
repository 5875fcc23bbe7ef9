"""The setup of a search: everything it is made of, checked and complete; as plain data, and back.

Searchers and schedulers are described by their class, if it is one of ours, and the arguments they were made with.
Code is never read from a file: a class is looked up by its name among those that are here. What has no such form (a
class of the user's own, a function among the arguments) must be given to the restore again, unless it was asked for by
a name that an installed package registers.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.air.config import RunConfig
from paceline.air.constants import DEFAULT_METRIC
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.metrics import flattened
from paceline.air.secrets import masked, secret_paths
from paceline.air.settings import need_code, restored, run_config_again, stored, stored_names
from paceline.tune.by_name import create_scheduler, create_searcher
from paceline.tune.experiment.files import ExperimentPlace
from paceline.tune.experiment.records import Facts
from paceline.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler
from paceline.tune.search.basic_variant import BasicVariantGenerator
from paceline.tune.search.domains import seed_of_program
from paceline.tune.search.searcher import Metric, Mode, Searcher, completion_call, introduce
from paceline.tune.search.space import describe, evaluated_record, from_description, values_in
from paceline.tune.search.variants import Found, find, path_text, reject_secret_options
from paceline.tune.trainable.kinds import TrainableKind
from paceline.tune.tuner import TuneConfig


@dataclass(frozen=True)
class SearchSetup:
    """What is tried out, how its configurations are found, and under which rules it runs."""

    kind: TrainableKind
    found: Found
    """The space, and what it searches over."""
    tune: TuneConfig
    run_config: RunConfig
    searcher: Searcher
    scheduler: TrialScheduler
    seed: int
    """What the searcher and the scheduler draw from, where the user gave no seed."""

    @property
    def space(self) -> Mapping[str, Any]:
        return self.found.space

    @property
    def metric(self) -> str | None:
        return self.tune.metric if isinstance(self.tune.metric, str) else None

    @property
    def mode(self) -> str | None:
        return self.tune.mode if isinstance(self.tune.mode, str) else None

    @property
    def metrics(self) -> list[str]:
        """Everything that trials are judged by."""
        metric = self.searcher.metric or self.tune.metric
        return [metric] if isinstance(metric, str) else list(metric or [])

    @property
    def may_overlap(self) -> bool:
        """A trial may begin while the processes of another end: nobody learns from results, and nobody has asked for
        one trial after the other."""
        return isinstance(self.searcher, BasicVariantGenerator) and self.tune.max_concurrent_trials != 1

    @property
    def total(self) -> int | None:
        """How many trials there will be; None: without end."""
        if self.searcher.total_samples is not None:
            return self.searcher.total_samples
        return None if self.tune.num_samples < 0 else self.tune.num_samples

    def config_record(self, config: Mapping[str, Any] | None) -> dict[str, Any]:
        """The configuration that a trial continues with, for a record.

        Where an object in it has no plain form, what makes it differ from the search space is written instead.
        """
        written = None if config is None else describe(masked(config))
        if config is None or written is not None:
            return {"config": written}
        chosen: dict[str, Any] = {}
        for path, value in values_in(self.found, config).items():
            name = self.found.texts.get(path)
            chosen.update(flattened({path_text(path): value}) if name is None else {name: value})
        return {"config": None, "evaluated": evaluated_record(self.found, chosen)}


_USED = "_has_searched"


def make_setup(
    kind: TrainableKind,
    space: Mapping[str, Any],
    tune: TuneConfig,
    run_config: RunConfig,
    seed: int | None = None,
) -> SearchSetup:
    """A setup in which everything fits together, or an error that says what does not."""
    kind.check_space(space)
    kind.check_run_config(run_config)
    if run_config.stop is None and tune.scheduler is None and tune.time_budget_s is None:
        kind.check_without_stop()
    seed = seed_of_program() if seed is None else seed
    searcher = _searcher(tune.search_alg)
    scheduler = _scheduler(tune.scheduler)
    metric, mode = _goal(tune, searcher, scheduler)
    if not introduce(searcher, metric, mode, dict(space), num_samples=tune.num_samples):
        if (metric, mode) in ((None, None), (searcher.metric, searcher.mode)):
            raise ConfigError(
                f"{type(searcher).__name__} has a space of its own, and param_space is one, too. Give the search space "
                "in one place; constants may stay in param_space."
            )
        raise ConfigError(
            f"search_alg was made for metric={searcher.metric!r}, mode={searcher.mode!r}, and TuneConfig says "
            f"metric={metric!r}, mode={mode!r}. Say it in one place."
        )
    if metric is None and searcher.metric is not None:
        metric, mode = searcher.metric, searcher.mode
    one = (metric, mode) if isinstance(metric, str) and isinstance(mode, str | None) else (None, None)
    if isinstance(metric, list) and scheduler.needs_metric and scheduler.metric is None:
        name = type(scheduler).__name__
        raise ConfigError(
            f"{name} compares trials by one metric, and the search is for {len(metric)}: say which one, as "
            f"{name}(metric={metric[0]!r}, mode=...)."
        )
    if not scheduler.set_search_properties(*one):
        raise ConfigError(
            f"scheduler was made for metric={scheduler.metric!r}, mode={scheduler.mode!r}, and the search is for "
            f"metric={metric!r}, mode={mode!r}. Say it in one place."
        )
    if metric is None and scheduler.metric is not None:
        metric, mode = scheduler.metric, scheduler.mode
    kind.check_mutations(scheduler.changed_parameters, space)
    reject_secret_options(scheduler.changed_parameters)
    if scheduler.checkpoint_every() is not None:
        kind.check_can_save(type(scheduler).__name__)
    searcher.set_seed(seed)
    scheduler.set_seed(seed)
    tune = dataclasses.replace(tune, metric=metric, mode=mode, reuse_actors=None)
    return SearchSetup(kind, find(space), tune, run_config, searcher, scheduler, seed)


def _goal(tune: TuneConfig, searcher: Searcher, scheduler: TrialScheduler) -> tuple[Metric, Mode]:
    """Metric and mode of TuneConfig. Where somebody compares trials, and was given a mode only, the metric is the
    number that trials report without a name."""
    mode = tune.mode or searcher.mode or scheduler.mode
    compares = scheduler.needs_metric or searcher.needs_metric
    if mode is None or not compares or tune.metric or searcher.metric or scheduler.metric:
        return tune.metric, tune.mode
    return DEFAULT_METRIC, mode


def _searcher(given: Searcher | str | None) -> Searcher:
    searcher = create_searcher(given) if isinstance(given, str) else given
    if searcher is None:
        return BasicVariantGenerator()
    if not isinstance(searcher, Searcher):
        raise ConfigError(f"search_alg must be a Searcher or the name of one, not {searcher!r}.")
    if getattr(searcher, _USED, False):
        raise ConfigError(
            f"This {type(searcher).__name__} has searched already and knows another experiment's trials: make a new "
            "one. To continue the earlier experiment use Tuner.restore()."
        )
    completion_call(searcher)  # rejects a method that could not be called
    return searcher


def mark_as_used(setup: SearchSetup) -> None:
    """The searcher knows an experiment from now on."""
    vars(setup.searcher)[_USED] = True


def _scheduler(given: TrialScheduler | str | None) -> TrialScheduler:
    scheduler = create_scheduler(given) if isinstance(given, str) else given
    if scheduler is None:
        return FIFOScheduler()
    if not isinstance(scheduler, TrialScheduler):
        raise ConfigError(f"scheduler must be a TrialScheduler or the name of one, not {scheduler!r}.")
    return copy.deepcopy(scheduler)  # what it learns in one experiment must not count in the next


def facts_of(setup: SearchSetup, place: ExperimentPlace) -> dict[str, Any]:
    """What a restore needs to know, as plain data."""
    config = setup.run_config
    return {
        "id": place.experiment_id,
        "name": place.name,
        "trainable": setup.kind.name,
        "seed": setup.seed,
        "space": _written(setup.space),
        "secrets": [path_text(path) for path in secret_paths(setup.space)],
        "searcher": described(setup.searcher),
        "scheduler": described(setup.scheduler),
        "registered": _registered(setup),
        **stored(setup.tune),
        "total": setup.total,
        "run": {
            **stored(config),
            "had_stop": config.stop is not None,
            "had_callbacks": need_code(config.callbacks),
        },
        "again": arguments_again(setup),
    }


def _registered(setup: SearchSetup) -> dict[str, str]:
    """The names that plugins without a description were asked for by."""
    asked = {argument: getattr(setup.tune, argument) for argument in _without_description(setup)}
    return {argument: name for argument, name in asked.items() if isinstance(name, str)}


def _without_description(setup: SearchSetup) -> list[str]:
    plugins: dict[str, Searcher | TrialScheduler] = {"search_alg": setup.searcher, "scheduler": setup.scheduler}
    return [argument for argument, plugin in plugins.items() if described(plugin) is None]


def arguments_again(setup: SearchSetup) -> list[str]:
    """What Tuner.restore() must be given again besides the trainable, in a line for people to complete."""
    by_name = _registered(setup)
    code = [name for name in _without_description(setup) if name not in by_name]
    code += [name for name in ("trial_name_creator", "trial_dirname_creator") if getattr(setup.tune, name) is not None]
    again = []
    if describe(setup.space) is None or secret_paths(setup.space):
        again.append("param_space=...")
    if code:
        again.append(f"tune_config=TuneConfig({', '.join(f'{name}=...' for name in code)})")
    if setup.run_config.storage_filesystem is not None:
        again.append("storage_filesystem=...")
    if (run_config := run_config_again(setup.run_config)) is not None:
        again.append(f"run_config={run_config}")
    return again


def restored_setup(
    facts: Facts,
    kind: TrainableKind,
    space: Mapping[str, Any] | None,
    tune: TuneConfig | None,
    run_config: RunConfig,
    num_samples: int | None,
) -> SearchSetup:
    """The setup of an earlier search; what is given now goes before what was written down."""
    if space is None:
        if facts.space is None:
            raise RestoreError(
                "The experiment's param_space holds functions or objects, which are never written down: pass "
                "Tuner.restore(..., param_space=...) again."
            )
        if facts.secrets:
            raise RestoreError(
                f"The experiment's secrets are not stored, and param_space has some at {', '.join(facts.secrets)}: "
                "pass Tuner.restore(..., param_space=...) again."
            )
        space = from_description(facts.space)
    elif facts.space is not None and _written(space) != _written(from_description(facts.space)):
        raise RestoreError(
            "param_space differs from the experiment's, and a search cannot continue in another space: pass the same "
            "one again (without secrets it may be left out), or start a new experiment with another name."
        )
    settings = {name: getattr(facts, name) for name in stored_names(TuneConfig)}
    if tune is not None:
        given = {field.name: getattr(tune, field.name) for field in dataclasses.fields(tune)}
        defaults = TuneConfig()
        settings.update({name: value for name, value in given.items() if value != getattr(defaults, name)})
        for name, searched in (("metric", facts.metric), ("mode", facts.mode)):
            if searched is not None and settings[name] != searched:
                raise RestoreError(
                    f"The experiment searched with {name}={searched!r}, and TuneConfig says {settings[name]!r}: "
                    "trials cannot be compared by both. Ask the results instead: get_best_result(metric, mode)."
                )
    if num_samples is not None:
        settings["num_samples"] = num_samples
    if settings.get("search_alg") is None:
        by_name = facts.registered.get("search_alg")
        settings["search_alg"] = by_name or rebuilt(Searcher, facts.searcher, "search_alg")
    if settings.get("scheduler") is None:
        by_name = facts.registered.get("scheduler")
        settings["scheduler"] = by_name or rebuilt(TrialScheduler, facts.scheduler, "scheduler")
    return make_setup(kind, space, TuneConfig(**settings), run_config, facts.seed)


def _written(space: Mapping[str, Any]) -> Any:
    """The space as the journal has it: two that differ in secrets only are equal."""
    return json.loads(json.dumps(describe(masked(space))))


def restored_run_config(facts: Facts, given: RunConfig | None, filesystem: Any = None) -> tuple[RunConfig, list[str]]:
    """The settings of the earlier experiment unless they are given now, and what could not be brought back."""
    if given is not None:
        return given if filesystem is None else dataclasses.replace(given, storage_filesystem=filesystem), []
    saved = facts.run
    config = restored(RunConfig, saved, storage_filesystem=filesystem)
    config.name = facts.name  # earlier versions took names that are rejected now
    lost = ["callbacks"] if saved["had_callbacks"] else []
    if saved["had_stop"] and config.stop is None:
        lost.append("a stop criterion")
    if not lost:
        return config, []
    return config, [
        f"The experiment had {' and '.join(lost)}, which restore() cannot bring back: pass run_config=RunConfig(...)."
    ]


P = TypeVar("P", Searcher, TrialScheduler)

_KINDS: dict[type, tuple[str, tuple[str, ...]]] = {
    Searcher: (
        "paceline.tune.search",
        ("BasicVariantGenerator", "ConcurrencyLimiter", "HyperOptSearch", "OptunaSearch", "Repeater"),
    ),
    TrialScheduler: (
        "paceline.tune.schedulers",
        (
            "AsyncHyperBandScheduler",
            "FIFOScheduler",
            "HyperBandScheduler",
            "MedianStoppingRule",
            "PB2",
            "PopulationBasedTraining",
            "PopulationBasedTrainingReplay",
            "ResourceChangingScheduler",
        ),
    ),
}
_PART = "$part"


def described(plugin: Searcher | TrialScheduler) -> dict[str, Any] | None:
    """The plugin as plain data; None if it has no such form."""
    base = Searcher if isinstance(plugin, Searcher) else TrialScheduler
    module, names = _KINDS[base]
    name = type(plugin).__name__
    if name not in names or getattr(importlib.import_module(module), name) is not type(plugin):
        return None
    if isinstance(plugin, Searcher) and plugin.knows_more:
        return None
    positional, keywords = plugin.made_with
    bound = inspect.signature(type(plugin)).bind(*positional, **keywords).arguments
    if secret_paths(bound):
        return None
    arguments = {key: _plain(value) for key, value in bound.items()}
    return None if any(value is None for value in arguments.values()) else {"class": name, "arguments": arguments}


def _plain(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Searcher | TrialScheduler):
        part = described(value)
        return None if part is None else {_PART: part}
    return describe({"value": value})


def rebuilt(base: type[P], description: Mapping[str, Any] | None, argument: str) -> P:
    """The plugin that `described` was given, in the state in which it was made."""
    if description is None:
        raise RestoreError(
            f"The experiment's {argument} is of a class of your own, or was given code, secrets or evaluated points: "
            f"pass it again, as Tuner.restore(..., tune_config=TuneConfig({argument}=...))."
        )
    module, names = _KINDS[base]
    if description["class"] not in names:
        raise RestoreError(f"The experiment names the {argument} {description['class']!r}, which is not here.")
    arguments = {key: _value(base, value, argument) for key, value in description["arguments"].items()}
    made = getattr(importlib.import_module(module), description["class"])(**arguments)
    assert isinstance(made, base)
    return made


def _value(base: type[P], value: Mapping[str, Any], argument: str) -> Any:
    return rebuilt(base, value[_PART], argument) if _PART in value else from_description(value)["value"]
