"""Settings as plain data, so that a restored run or search has those that it had.

`stored` and `restored` are the one way for every config: what is a plain value is written down and comes back, what is
code or an object is not. Callbacks are code too, but those that were asked for by a registered name are made again by
that name. A new field of a config needs nothing here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from paceline.air.config import RunConfig
from paceline.air.secrets import masked

C = TypeVar("C")

NOT_STORED: Mapping[str, Mapping[str, str]] = {
    "RunConfig": {
        "name": "a header has it as the experiment's name",
        "storage_path": "files may have been moved; they are where they were found",
        "local_dir": "an old name of storage_path",
        "storage_filesystem": "an object",
        "progress_reporter": "code",
    },
    "SyncConfig": {"upload_dir": "an old name of storage_path"},
    "CheckpointConfig": {"_checkpoint_keep_all_ranks": "an old name of keep_all_ranks"},
    "TuneConfig": {
        "search_alg": "an object, described by itself",
        "scheduler": "an object, described by itself",
        "trial_name_creator": "code",
        "trial_dirname_creator": "code",
        "reuse_actors": "without effect",
    },
}
"""By class and field, why a setting is not written down."""


def stored_names(kind: type) -> list[str]:
    """The fields of a config that are written down."""
    return [field.name for field in dataclasses.fields(kind) if field.name not in NOT_STORED.get(kind.__name__, {})]


def stored(config: Any) -> dict[str, Any]:
    """The plain settings of a config, those of the configs in it included. What is code in a field is left out."""
    settings: dict[str, Any] = {}
    for name in stored_names(type(config)):
        value = getattr(config, name)
        if name == "callbacks" and isinstance(config, RunConfig):
            settings[name] = _registered_names(value)
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            settings[name] = stored(value)
            continue
        plain = as_json(dict(value) if isinstance(value, Mapping) else value)
        if plain is not None or value is None:
            settings[name] = plain
    return settings


def restored(kind: type[C], settings: Mapping[str, Any], **given: Any) -> C:
    """The config that `stored` was given; `given` are settings that go before the stored ones.

    Fields that only another version has are passed over, and those that it did not have get their default.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # every config is a dataclass
        if field.name in settings:
            value = settings[field.name]
            inner: Any = field.default_factory
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                value = restored(inner, value)
            elif isinstance(value, list) and "tuple" in str(field.type):
                value = tuple(value)  # JSON has no tuples
            values[field.name] = value
    return kind(**{**values, **given})


def need_code(callbacks: Sequence[Any]) -> bool:
    """True if a restore cannot make all of these callbacks by their registered names."""
    return len(_registered_names(callbacks)) < len(callbacks)


def _registered_names(callbacks: Sequence[Any]) -> list[str]:
    names = (getattr(callback, "registered_as", None) for callback in callbacks)
    return [name for name in names if isinstance(name, str)]


def run_config_again(config: Any) -> str | None:
    """The RunConfig that a restore must be given, in a line for people to complete; None if all of it is stored.

    It takes the place of the stored one, so it repeats what that one sets.
    """
    if not need_code(config.callbacks) and not callable(config.stop):
        return None
    default, shown = type(config)(), []
    for name in stored_names(type(config)):
        value = getattr(config, name)
        if name == "callbacks" and not need_code(value):
            value = _registered_names(value)
        if value != getattr(default, name):
            is_plain = dataclasses.is_dataclass(value) or as_json(value) is not None or value is None
            shown.append(f"{name}={value!r}" if is_plain else f"{name}=...")
    return f"{type(config).__name__}({', '.join(shown)})"


def plain_config(config: Any) -> Any:
    """A configuration as it is written down: without its secrets; None if it is not plain JSON."""
    return as_json(masked(config))


_PLAIN = (bool, int, float, str, type(None))


def as_json(value: Any) -> Any:
    """The value if it is plain JSON, else None."""
    if type(value) in _PLAIN:  # as most settings are, which are written down for each trial of a search
        return value
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None
