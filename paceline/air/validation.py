"""Validating checkpoints beside training: what the user says about it.

`ValidationConfig` goes to the trainer, `ValidationTask` to `report(validation=...)`. The metrics that the function
returns belong to the row and the checkpoint they are about, below the key "validation".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from paceline.air.checks import (
    ShortRepr,
    check_bool,
    check_kind,
    check_seconds,
    names_what_was_meant,
    near_miss,
    whole_number,
)
from paceline.air.constants import VALIDATION
from paceline.air.data_config import DatasetConfig
from paceline.air.errors import ConfigError, MetricError, SessionMisuseError
from paceline.air.resources import ScalingConfig
from paceline.air.secrets import secret_paths
from paceline.air.settings import as_json

__all__ = ["ValidationConfig", "ValidationTask"]


class TakenArguments(Struct, frozen=True):
    """What a validation function takes beside the checkpoint: known to workers, which do not have the function."""

    called: str
    names: list[str] | None
    """None: any."""
    required: list[str] = []


@names_what_was_meant()
@dataclass(repr=False, eq=False)
class ValidationConfig(ShortRepr):
    """How checkpoints are validated by workers of their own, while training continues."""

    fn: Callable[..., Mapping[str, Any]]
    """Called as ``fn(checkpoint, **kwargs)`` on each validation worker; what it returns on rank 0 are the metrics."""
    scaling_config: ScalingConfig = field(default_factory=lambda: ScalingConfig(num_workers=1))
    """The workers of one validation. Numeric libraries use as many threads as a worker has CPUs."""
    max_concurrent: int = 1
    """How many validations run at the same time; the others wait for their turn, in order."""
    datasets: Mapping[str, Any] | None = None
    """What `get_dataset_shard()` gives the validation workers: each gets its part, and no row is left out."""
    dataset_config: Mapping[str, DatasetConfig] | None = None
    """How datasets reach the validation workers where that is not as usual, by name or "*"."""
    max_failures: int = 0
    """How many times a validation that failed is tried again."""
    timeout_s: float | None = None
    """A validation that takes longer has failed; None: it may take as long as it needs."""
    fail_run: bool = False
    """A validation that failed for good stops the training and fails the run. Otherwise it causes a warning."""

    def __post_init__(self) -> None:
        self.taken_arguments  # noqa: B018  (what is wrong with the function is raised here)
        scaling = check_kind(self.scaling_config, ScalingConfig, "scaling_config") or ScalingConfig()
        if scaling.is_elastic:
            raise ConfigError(
                f"ValidationConfig: the number of validation workers is fixed, but num_workers={scaling.num_workers} "
                "is elastic. Pass a single number."
            )
        self.scaling_config = scaling if scaling.num_workers is not None else replace(scaling, num_workers=1)
        self.max_concurrent = whole_number(self.max_concurrent, "max_concurrent", least=1)
        self.max_failures = whole_number(
            self.max_failures, "max_failures", least=-1, advice="Use 0 for no retry, -1 for retries without limit."
        )
        check_seconds(self.timeout_s, "timeout_s", none_means="no limit")
        check_bool(self.fail_run, "fail_run")
        if self.datasets is not None and not isinstance(self.datasets, Mapping):
            raise ConfigError(f"datasets must be a dict of name to dataset, not {type(self.datasets).__name__}.")
        if self.dataset_config is not None and not isinstance(self.dataset_config, Mapping):
            raise ConfigError(
                "ValidationConfig: dataset_config must be a dict of dataset name to DatasetConfig, "
                f"not {type(self.dataset_config).__name__}."
            )

    @property
    def taken_arguments(self) -> TakenArguments:
        """What the function takes beside the checkpoint. Raises ConfigError for one that takes no checkpoint."""
        function: object = self.fn
        if not callable(function):
            raise ConfigError(
                f"ValidationConfig(fn=...) must be a function of a checkpoint, not {type(function).__name__}. Pass the "
                "function itself, without calling it."
            )
        called = getattr(function, "__name__", type(function).__name__)
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # a builtin without a signature
            return TakenArguments(called, None)
        first = next((each for each in parameters if each.kind is not each.KEYWORD_ONLY), None)
        if first is None or first.kind is first.VAR_KEYWORD:
            raise ConfigError(
                f"ValidationConfig(fn={called}): the function is called with a checkpoint, as {called}(checkpoint), "
                f"but it takes {inspect.signature(function)}."
            )
        named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        others = [each for each in named if each is not first]
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
        required = [each.name for each in others if each.default is each.empty]
        return TakenArguments(called, None if takes_any else [each.name for each in others], required)


@dataclass(frozen=True)
class ValidationTask:
    """A validation with arguments of its own: ``report(metrics, checkpoint=..., validation=ValidationTask({...}))``."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the function by name. Plain values, because they are written to the run's journal."""


def checked_task(
    validation: bool | ValidationTask | None,
    taken: TakenArguments | None,
    metrics: Mapping[str, Any],
    *,
    has_checkpoint: bool,
) -> dict[str, Any] | None:
    """The arguments of the validation that `report(validation=...)` asks for; None: it asks for none.

    Raises what is wrong with it, at the user's line. `taken` is None without a ValidationConfig.
    """
    if validation is None or validation is False:
        return None
    given: object = validation  # users do not run a type checker
    if given is not True and not isinstance(given, ValidationTask):
        advice = ": write ValidationTask(), with parentheses." if given is ValidationTask else "."
        raise SessionMisuseError(
            f"report(validation={given!r}): pass True or a ValidationTask{advice} Metrics go into the dict: "
            "report({'loss': 0.1, ...})."
        )
    if taken is None:
        raise SessionMisuseError(
            "report(validation=...) asks for a validation, but the trainer was given no "
            "validation_config=ValidationConfig(fn=...), which says how."
        )
    if not has_checkpoint:
        raise SessionMisuseError("report(validation=...) validates the checkpoint of the same call: pass checkpoint=.")
    if taken_key := next((key for key in metrics if key.split("/")[0] == VALIDATION), None):
        raise MetricError(
            f"The metric {taken_key!r} has the name under which the row gets the metrics of the validation: "
            "report it by another name."
        )
    return _checked_kwargs(given.kwargs if isinstance(given, ValidationTask) else {}, taken)


def _checked_kwargs(kwargs: Mapping[str, Any], taken: TakenArguments) -> dict[str, Any]:
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise SessionMisuseError(f"ValidationTask({kwargs!r}): pass a dict of argument names to values.")
    for name, value in kwargs.items():
        if taken.names is not None and name not in taken.names:
            raise SessionMisuseError(
                f"ValidationTask: {taken.called}() has no argument {name!r}{near_miss(name, taken.names)}"
            )
        if as_json(value) is None and value is not None:
            raise SessionMisuseError(
                f"ValidationTask: {name}={value!r} is not a plain value, and the arguments of a validation are written "
                "to the journal. Pass numbers, text, lists and dicts; objects can be part of the checkpoint, or of "
                "fn=functools.partial(...)."
            )
        if secret_paths({name: value}):
            raise SessionMisuseError(
                f"ValidationTask: {name} is a secret, and the arguments of a validation are written to the journal. "
                "Pass it with fn=functools.partial(...)."
            )
    if missing := [name for name in taken.required if name not in kwargs]:
        raise SessionMisuseError(
            f"The validation calls {taken.called}() without {', '.join(missing)}: pass validation=ValidationTask("
            f"{{{missing[0]!r}: ...}})."
        )
    plain: dict[str, Any] = as_json(dict(kwargs))
    return plain


def with_validation(row: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the metrics of its validation."""
    return {**row, VALIDATION: dict(metrics)}
