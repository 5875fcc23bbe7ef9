"""Observations as a network takes them: arrays with a row per observation, checked against the observation space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def observation_batch(space: Any, values: Any, *, single: bool = False, name: str = "") -> Any:
    """Observations of a gymnasium space as arrays with a row for each; `single`: `values` is one observation.

    A Dict or Tuple space gives a dict or tuple of such arrays. `values` of these spaces may also be a list with an
    observation per row. Values outside a Box's bounds pass, because environments give such values too.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else list(range(len(space.spaces)))
        parts = _parts(space, values, keys, single=single, name=name)
        arrays = {
            key: observation_batch(space[key], part, single=single, name=f"{name}[{key!r}]")
            for key, part in parts.items()
        }
        counts = {key: rows_in(array) for key, array in arrays.items()}
        if len(set(counts.values())) > 1:
            raise DataError(f"{_subject(name)} {described(space)}, but its parts differ in their rows: {counts}.")
        return arrays if isinstance(space, spaces.Dict) else tuple(arrays.values())
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise DataError(
            f"{_subject(name)} {described(space)}. A Policy does not support spaces of the kind "
            f"{type(space).__name__}; get_model() gives the network."
        )
    array = _array(space, values, single=single, name=name)
    return array[None] if single else array


def some_observation(space: Any) -> Any:
    """An observation of the right form: zeros, where these are in the space."""
    import numpy as np
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: some_observation(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(some_observation(part) for part in space.spaces)
    return np.zeros(space.shape, space.dtype) + np.asarray(getattr(space, "start", 0), space.dtype)


def rows_in(observations: Any) -> int:
    """The number of rows of what `observation_batch` made."""
    while isinstance(observations, Mapping | tuple):
        observations = next(iter(observations.values() if isinstance(observations, Mapping) else observations))
    return len(observations)


def described(space: Any) -> str:
    """A space for a message, without long lists of bounds."""
    text = " ".join(str(space).split())
    if len(text) <= 200 or space.shape is None:
        return text if len(text) <= 400 else f"{text[:400]}..."
    return f"{type(space).__name__} of shape {space.shape} and type {space.dtype}"


def _parts(space: Any, values: Any, keys: list[Any], *, single: bool, name: str) -> dict[Any, Any]:
    """What belongs to each part of a Dict or Tuple space."""
    is_row = Mapping if isinstance(keys[0], str) else tuple
    if not single and isinstance(values, Sequence) and not isinstance(values, tuple):
        rows = [_parts(space, row, keys, single=True, name=name) for row in values]
        return {key: [row[key] for row in rows] for key in keys}
    if not isinstance(values, is_row):
        raise DataError(f"{_subject(name)} {described(space)}, but {_kind(values)} was given.")
    given = dict(values) if isinstance(values, Mapping) else dict(enumerate(values))
    if set(given) != set(keys):
        raise DataError(f"{_subject(name)} {described(space)}, but {sorted(map(str, given))} were given.")
    return {key: given[key] for key in keys}


def _array(space: Any, values: Any, *, single: bool, name: str) -> NDArray[Any]:
    import numpy as np

    if isinstance(values, list) and not values and not single:
        return np.zeros((0, *space.shape), space.dtype)
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim:
            array = np.stack([np.asarray(value) for value in array])
    except (ValueError, TypeError) as error:
        raise DataError(f"{_subject(name)} {described(space)}, but the given values are no array: {error}.") from None
    shape = array.shape if single else array.shape[1:]
    if array.dtype.kind not in "biuf" or (not single and array.ndim == 0):
        given = _kind(array if array.ndim else values)
        raise DataError(f"{_subject(name)} {described(space)}, but {given} was given.")
    if shape != space.shape:
        given = f"an observation of shape {shape} was given" if single else f"an array of shape {array.shape} was given"
        one = array.shape == space.shape
        advice = ". For a single observation call compute_single_action(), or give obs[None]" if one else ""
        raise DataError(f"{_subject(name)} {described(space)}, but {given}{advice}.")
    return _in_range(space, _of_type(space, array, name), name)


def _of_type(space: Any, array: NDArray[Any], name: str) -> NDArray[Any]:
    import numpy as np

    if array.dtype.kind == "f" and np.isnan(array).any():
        raise DataError(
            f"{_subject(name)} {described(space)}, but there are missing values (NaN) among the given ones."
        )
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(space.dtype, copy=False)
    if converted.dtype.kind != "f" and converted is not array and not np.array_equal(converted, array):
        raise DataError(f"{_subject(name)} {described(space)}, but some of the given values do not fit {space.dtype}.")
    return converted


def _in_range(space: Any, array: NDArray[Any], name: str) -> NDArray[Any]:
    """Discrete values choose a row of a table or a position of a vector: one out of range would be another's."""
    import numpy as np
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return array
    if isinstance(space, spaces.MultiBinary):
        least, end = np.int64(0), np.int64(2)
    else:
        least = space.start
        end = least + (space.n if isinstance(space, spaces.Discrete) else space.nvec)
    if ((array < least) | (array >= end)).any():
        raise DataError(f"{_subject(name)} {described(space)}, but some of the given values are out of its range.")
    return array


def _subject(name: str) -> str:
    return f"The policy's observation {name} is" if name else "The policy takes observations of the space"


def _kind(values: Any) -> str:
    dtype = getattr(values, "dtype", None)
    return f"a value of type {type(values).__name__}" if dtype is None else f"an array of type {dtype}"
