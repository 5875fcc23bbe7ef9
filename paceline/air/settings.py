"""Settings as plain data, so that a restored run or search has those that it had.

`stored` and `restored` are the one way for every config: what is a plain value is written down and comes back, what is
code or an object is not. A new field of a config needs nothing here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from paceline.air.secrets import masked

C = TypeVar("C")

NOT_STORED: Mapping[str, Mapping[str, str]] = {
    "RunConfig": {
        "name": "a header has it as the experiment's name",
        "storage_path": "files may have been moved; they are where they were found",
        "local_dir": "an old name of storage_path",
        "storage_filesystem": "an object",
        "callbacks": "code",
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
        if dataclasses.is_dataclass(value):
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


def plain_config(config: Any) -> Any:
    """A configuration as it is written down: without its secrets; None if it is not plain JSON."""
    return as_json(masked(config))


def as_json(value: Any) -> Any:
    """The value if it is plain JSON, else None."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None
