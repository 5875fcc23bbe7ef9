"""with_parameters and with_resources: give a trainable large objects beside its configuration, and what it needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError
from paceline.air.resources import PlacementGroupFactory, checked_resources
from paceline.train.base_trainer import BaseTrainer
from paceline.tune.registry import get_trainable
from paceline.tune.trainable.session import call_form, function_name, takes_keyword
from paceline.tune.trainable.trainable import Trainable, subclass_with, unwrapped


@dataclass(frozen=True)
class BoundFunction:
    """A function trainable with what it was given besides: keywords, resources."""

    function: Callable[..., Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **{**self.parameters, **keywords})

    @property
    def __name__(self) -> str:
        return function_name(self.function)


def with_parameters(trainable: Any, **parameters: Any) -> Any:
    """A trainable that gets `parameters` too: a function as keywords, a Trainable class in its setup().

        def train(config, data): ...

        Tuner(tune.with_parameters(train, data=frame), param_space=...)

    They are pickled once for all trials, not with each configuration. Arrays of numpy, and what is made of such, are
    in memory once for all trials; a trial that writes to one has a copy of its own of what it changed.
    """
    trainable = _class_or_function(
        trainable, "with_parameters()", "give it its data as datasets=, and other values as train_loop_config=."
    )
    if not isinstance(trainable, BoundFunction):
        return _class_with(trainable, parameters)
    bound = replace(trainable, parameters={**trainable.parameters, **parameters})
    call_form(bound.function, bound.parameters, bound.__name__)  # a misspelled name is rejected here
    return bound


def _class_or_function(trainable: Any, taker: str, of_a_trainer: str) -> type[Trainable] | BoundFunction:
    """What parameters and resources can be given to; `of_a_trainer` says how a trainer gets them."""
    if isinstance(trainable, str):
        trainable = get_trainable(trainable)
    trainable = unwrapped(trainable)
    if isinstance(trainable, BaseTrainer):
        raise ConfigError(
            f"{taker} takes a function or a Trainable class, not a {type(trainable).__name__}: {of_a_trainer}"
        )
    if isinstance(trainable, BoundFunction):
        return trainable
    if isinstance(trainable, type) and issubclass(trainable, Trainable):
        return trainable
    if not callable(trainable) or isinstance(trainable, type):
        raise ConfigError(f"{taker} takes a function or a Trainable class, not {trainable!r}.")
    return BoundFunction(trainable)


def _class_with(trainable: Any, parameters: dict[str, Any]) -> Any:
    signature = inspect.signature(trainable.setup)
    unknown = [word for word in parameters if not takes_keyword(signature, word)]
    if unknown:
        raise ConfigError(
            f"with_parameters({unknown[0]}=...): {trainable.__name__}.setup{signature} takes no argument of that name."
        )

    def setup(self: Any, config: dict[str, Any], **more: Any) -> None:
        trainable.setup(self, config, **{**parameters, **more})

    setup.__wrapped__ = trainable.setup  # type: ignore[attr-defined]  # so that its arguments are known to the next one
    return subclass_with(trainable, "with_parameters", setup=setup)


Resources: TypeAlias = PlacementGroupFactory | Callable[..., Any]
"""The same for all trials, or a function of the configuration."""
_SPELLINGS = {"cpu": "CPU", "gpu": "GPU"}
_MEANT = {
    form.format(name=spelling): meant
    for spelling, meant in _SPELLINGS.items()
    for form in ("{name}", "{name}s", "num_{name}", "num_{name}s", "n_{name}s", "{name}_count")
}
"""Other names are those of resources of the user's own."""


def with_resources(trainable: Any, resources: Any) -> Any:
    """A trainable whose trials need `resources`: {"CPU": 2, "GPU": 0.5}, a PlacementGroupFactory, a ScalingConfig, or
    a function that gives one of these for a configuration. As many trials run at a time as the machine has room for.
    """
    wanted = as_resources(resources)
    trainable = _class_or_function(
        trainable,
        "with_resources()",
        "a trainer says what it needs by scaling_config=, which may also be in the param_space.",
    )
    if isinstance(trainable, BoundFunction):
        return replace(trainable, resources=wanted)

    def default_resource_request(cls: Any, config: dict[str, Any]) -> PlacementGroupFactory:
        return resources_for(wanted, config)

    request = classmethod(default_resource_request)
    return subclass_with(trainable, "with_resources", default_resource_request=request)


def as_resources(resources: Any) -> Resources:
    """What the user gave, in one of two forms; ConfigError for anything else."""
    if isinstance(resources, PlacementGroupFactory):
        return resources
    if isinstance(resources, ScalingConfig):
        return resources.as_placement_group_factory()
    if isinstance(resources, Mapping):
        amounts = checked_resources(resources, "resources")
        for name in amounts:
            if (meant := _MEANT.get(name.lower())) and name not in (meant, meant.lower()):
                raise ConfigError(f"resources has the key {name!r}: did you mean {meant!r}?")
        return PlacementGroupFactory([{_SPELLINGS.get(name, name): amount for name, amount in amounts.items()}])
    if callable(resources):
        function: Callable[..., Any] = resources
        return function
    raise ConfigError(
        f"resources must be a dict such as {{'CPU': 2}}, a PlacementGroupFactory, a ScalingConfig or a function of the "
        f"configuration, not {resources!r}."
    )


def resources_for(resources: Resources, config: dict[str, Any]) -> PlacementGroupFactory:
    """What the trial with this configuration needs."""
    if isinstance(resources, PlacementGroupFactory):
        return resources
    given = as_resources(resources(config))
    if not isinstance(given, PlacementGroupFactory):
        raise ConfigError(f"The function given as resources returned {given!r}: return a dict such as {{'CPU': 2}}.")
    return given
