"""Discretizers: numbers become the number of the interval (bin) they lie in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from paceline.air.checks import check_bool, check_choice, whole_number
from paceline.air.errors import ConfigError
from paceline.data.preprocessors.columns import NumericPreprocessor, learnt_range, numbers_and_nulls
from paceline.data.statistics import Extremes

WIDENING = 0.001
"""By this share of the range the outer bin is widened, so that the extreme value itself lies in it."""


class _Discretizer(NumericPreprocessor):
    """Puts numbers into bins, as `pandas.cut` does. Numbers outside of all bins, and missing ones, become null."""

    def __init__(
        self,
        columns: list[str],
        bins: Any,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(columns)
        name = type(self).__name__
        check_bool(right, f"{name}: right")
        check_bool(include_lowest, f"{name}: include_lowest")
        check_choice(duplicates, f"{name}: duplicates", ("raise", "drop"))
        self.bins = bins
        self.right = right
        self.include_lowest = include_lowest
        self.duplicates = duplicates
        self.dtypes = None if dtypes is None else _checked_dtypes(dtypes, self.columns, name)
        for column in self.columns:
            if isinstance(bins, Mapping) and column not in bins:
                raise ConfigError(f"{name}: bins has no entry for column {column!r}.")
            self._check_bins(column)

    def _bins_of(self, column: str) -> Any:
        return self.bins[column] if isinstance(self.bins, Mapping) else self.bins

    @abstractmethod
    def _check_bins(self, column: str) -> None:
        """Refuse what was given as bins of a column."""

    @abstractmethod
    def _edges(self, column: str) -> np.ndarray:
        """Where the bins of a column begin and end."""

    def _check_labels(self, column: str, bins: int) -> None:
        """Refuse categories for a column that are not as many as its bins."""
        dtype = (self.dtypes or {}).get(column)
        if isinstance(dtype, pd.CategoricalDtype) and len(dtype.categories) != bins:
            raise ConfigError(
                f"{type(self).__name__}: dtypes has {len(dtype.categories)} categories for column {column!r}, "
                f"which has {bins} bins. Give one category per bin."
            )

    def _transform_numbers(self, column: str, numbers: np.ndarray) -> np.ndarray:
        """The number of each value's bin; -1 outside of all."""
        edges = self._edges(column)
        bins = edges.searchsorted(numbers, side="left" if self.right else "right") - 1
        if self.include_lowest:
            bins[numbers == edges[0]] = 0
        bins[(bins == len(edges) - 1) | np.isnan(numbers)] = -1
        return bins

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        numbers, missing = numbers_and_nulls(values, column, type(self).__name__)
        bins = self._transform_numbers(column, numbers)
        outside = bins < 0 if missing is None else (bins < 0) | missing
        dtype = (self.dtypes or {}).get(column)
        if isinstance(dtype, pd.CategoricalDtype):
            places = pa.array(bins.astype(np.int32), mask=outside)
            labels = pa.array(list(dtype.categories))
            return pa.DictionaryArray.from_arrays(places, labels, ordered=bool(dtype.ordered))
        bins[outside] = 0  # under the mask: no small or unsigned type must hold -1
        return pa.array(bins.astype(dtype or np.int64, copy=False), mask=outside if outside.any() else None)


class CustomKBinsDiscretizer(_Discretizer):
    """Bins between the given edges: a list for all columns, or a dict with a list per column.

    Bin i goes from edge i to edge i + 1. It includes its upper end (`right=True`) or its lower end;
    with `include_lowest` the first one includes both. `dtypes` gives the result of a column another integer
    type, or names for the bins (a pandas.CategoricalDtype). Nothing is learnt.
    """

    _is_fittable = False

    def _check_bins(self, column: str) -> None:
        self._check_labels(column, len(self._edges(column)) - 1)

    def _edges(self, column: str) -> np.ndarray:
        given = self._bins_of(column)
        try:
            edges = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            edges = np.empty(0)
        if edges.ndim != 1 or len(edges) < 2 or np.isnan(edges).any() or (np.diff(edges) < 0).any():
            raise ConfigError(
                f"CustomKBinsDiscretizer: bins of column {column!r} is {given!r}: give two or more numbers in rising "
                "order."
            )
        return _distinct(edges, self.duplicates, f"CustomKBinsDiscretizer: bins of column {column!r}")


class UniformKBinsDiscretizer(_Discretizer):
    """Bins of equal width from the smallest to the largest value: `bins` of them, or a dict with a number per column.

    Smaller and larger values than those it was fitted on become null. See CustomKBinsDiscretizer for the rest.
    """

    _kind_of_statistic = Extremes

    def _check_bins(self, column: str) -> None:
        whole_number(self._bins_of(column), f"UniformKBinsDiscretizer: bins of column {column!r}", least=1)

    def _learnt(self, column: str, found: Any) -> dict[str, Any]:
        low, high = learnt_range(found, column, "UniformKBinsDiscretizer")
        edges = _equal_widths(float(low), float(high), self._bins_of(column), self.right)
        edges = _distinct(edges, self.duplicates, f"UniformKBinsDiscretizer: bins of column {column!r}")
        self._check_labels(column, len(edges) - 1)
        return {column: edges}

    def _edges(self, column: str) -> np.ndarray:
        edges: np.ndarray = self.stats_[column]
        return edges


def _equal_widths(low: float, high: float, bins: int, right: bool) -> np.ndarray:
    """The edges of bins that hold all values from low to high; the open end is moved out a little."""
    if low == high:
        around = WIDENING * abs(low) if low else WIDENING
        return np.linspace(low - around, high + around, bins + 1)
    edges = np.linspace(low, high, bins + 1)
    if right:
        edges[0] -= WIDENING * (high - low)
    else:
        edges[-1] += WIDENING * (high - low)
    return edges


def _distinct(edges: np.ndarray, duplicates: str, what: str) -> np.ndarray:
    distinct = np.unique(edges)
    if len(distinct) < len(edges) and (duplicates == "raise" or len(distinct) < 2):
        raise ConfigError(f"{what}: {edges.tolist()} has equal edges. duplicates='drop' makes one of them.")
    return distinct


def _checked_dtypes(dtypes: Mapping[str, Any], columns: list[str], name: str) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for column, dtype in dtypes.items():
        if column not in columns:
            raise ConfigError(f"{name}: dtypes has an entry for {column!r}, which is not among columns.")
        categorical = isinstance(dtype, pd.CategoricalDtype)
        try:
            fits = dtype.categories is not None if categorical else np.dtype(dtype).kind in "iu"
        except TypeError:
            fits = False
        if not fits:
            raise ConfigError(
                f"{name}: dtypes[{column!r}] is {dtype!r}: give an integer type of numpy, or a pandas.CategoricalDtype "
                "with a category per bin."
            )
        checked[column] = dtype if categorical else np.dtype(dtype)
    return checked
