"""The arguments of Dataset.join, in the spelling of this library and in that of Ray Data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.air.checks import check_choice, warn_at_users_line
from paceline.air.errors import ConfigError

_HOW = {
    "inner": "inner",
    "left_outer": "left",
    "right_outer": "right",
    "full_outer": "outer",
    "left_semi": "left_semi",
    "left_anti": "left_anti",
    "right_semi": "right_semi",
    "right_anti": "right_anti",
}
_NEED_NO_SETTING = ("partition_size_hint", "aggregator_ray_remote_args", "validate_schemas")


def keys_and_kind(positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, str]:
    """`on` and `how`, from ``(on, how)`` or ``(join_type, num_partitions, on)``.

    The number of partitions is for a cluster: one process joins here, within bounded memory.
    """
    of_ray = "join_type" in named or "num_partitions" in named or _starts_with_type(positional, named)
    order = ("join_type", "num_partitions", "on") if of_ray else ("on", "how")
    if len(positional) > len(order):
        raise TypeError(f"Dataset.join() takes {', '.join(order)} by position; write the others as keywords.")
    given = dict(zip(order, positional, strict=False))
    for name, value in named.items():
        if name in given:
            raise TypeError(f"Dataset.join() got multiple values for argument {name!r}.")
        if name in _NEED_NO_SETTING:
            if value:
                warn_at_users_line(f"join: {name} has no effect: there is no cluster that joins parts of the data.")
        elif name not in (*order, "num_partitions"):
            raise TypeError(f"Dataset.join() got an unexpected keyword argument {name!r}; it takes {', '.join(order)}.")
        given[name] = value
    if of_ray:
        check_choice(given.get("join_type"), "join_type", tuple(_HOW))
        return given.get("on", ("id",)), _HOW[given["join_type"]]
    if "on" not in given:
        raise TypeError("Dataset.join() needs on=, the names of the columns in which rows agree.")
    return given["on"], given.get("how", "inner")


def _starts_with_type(positional: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether the first argument is a join_type: it could also be the name of a column."""
    if not positional or positional[0] not in tuple(_HOW):
        return False
    return "on" in named or (len(positional) > 1 and isinstance(positional[1], int))


def suffixed(
    left: Sequence[str], right: Sequence[str], on: Sequence[str], suffixes: tuple[str | None, str | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """New names for the columns, other than the keys, that both sides have."""
    both = [name for name in left if name in right and name not in on]
    for suffix in suffixes:
        if suffix is not None and not isinstance(suffix, str):
            raise ConfigError(f"join: a suffix is text, not {suffix!r}.")
    one, other = ({name: name + suffix for name in both} if suffix else {} for suffix in suffixes)
    return one, other
