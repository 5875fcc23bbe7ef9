"""What other installed packages add to paceline, by entry points.

Entry points are looked up only where a name is unknown to paceline itself, never at import.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from paceline.air.errors import ConfigError

T = TypeVar("T")
Group = Literal["backends", "engines", "predictors", "schedulers", "searchers", "trackers"]

_OWN = {
    "trackers": {
        "aim": "paceline.tune.logger.aim:AimLoggerCallback",
        "comet": "paceline.air.integrations.comet:CometLoggerCallback",
        "mlflow": "paceline.air.integrations.mlflow:MLflowLoggerCallback",
        "wandb": "paceline.air.integrations.wandb:WandbLoggerCallback",
    }
}
"""What paceline has under such names itself."""


def plugin(group: Group, name: str) -> Any:
    """The object that a package has registered as `name` in the group ``paceline.<group>``; None if there is none."""
    from importlib.metadata import EntryPoint, entry_points

    if own := _OWN.get(group, {}).get(name):
        found = [EntryPoint(name, own, f"paceline.{group}")]
    else:
        found = list({point.value: point for point in entry_points(group=f"paceline.{group}", name=name)}.values())
    if not found:
        return None
    if len(found) > 1:
        owners = " and ".join(sorted(point.dist.name if point.dist else point.value for point in found))
        raise ConfigError(f"{owners} both register {name!r} in paceline.{group}: uninstall one of them.")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} of paceline.{group} is registered as {found[0].value}: {error}.") from error


def plugin_names(group: Group) -> list[str]:
    """What is registered, for messages about unknown names."""
    from importlib.metadata import entry_points

    return sorted({*_OWN.get(group, {}), *(point.name for point in entry_points(group=f"paceline.{group}"))})


def made_by_name(group: Group, name: str) -> Any:
    """What is registered, made without arguments, with the name as its `registered_as`; None if there is nothing."""
    found = plugin(group, name)
    if found is None:
        return None
    try:
        made = found()
    except Exception as error:
        raise ConfigError(
            f"{name!r} of paceline.{group} cannot be made without arguments: {type(error).__name__}: {error}"
        ) from error
    if hasattr(made, "__dict__"):
        vars(made)["registered_as"] = name
    return made


def checked_made(made: Any, kind: type[T], group: Group, name: str) -> T:
    """What a registered class or function has made, if it is of the right kind."""
    if not isinstance(made, kind):
        raise ConfigError(f"{name!r} of paceline.{group} makes a {type(made).__name__}, not a {kind.__name__}.")
    return made
