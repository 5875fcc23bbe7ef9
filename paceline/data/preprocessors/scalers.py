"""Numbers to other numbers: scalers (which learn from the column), PowerTransformer and Normalizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.air.checks import check_choice, is_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors.columns import (
    ColumnPreprocessor,
    NumericPreprocessor,
    as_float,
    learnt,
    learnt_range,
    numbers_and_nulls,
    scaled,
    with_columns,
)
from paceline.data.statistics import Extremes, Moments, MomentsOf, Quantiles, Statistic

ROUNDING = float(np.finfo(np.float64).eps)


class StandardScaler(NumericPreprocessor):
    """(x - mean) / standard deviation, per column.

    The deviation is that of the population (division by n). A column of one value becomes 0. Missing
    values are left out in fitting and stay missing.
    """

    _kind_of_statistic = Moments

    def _learnt(self, column: str, found: Any) -> dict[str, Any]:
        mean = learnt(found and found.mean, "mean", column, type(self).__name__)
        deviation = 0.0 if _is_constant(found) else math.sqrt(found.variance)
        return {f"mean({column})": mean, f"std({column})": deviation}

    def _transform_numbers(self, column: str, numbers: np.ndarray) -> np.ndarray:
        return scaled(numbers, self.stats_[f"mean({column})"], self.stats_[f"std({column})"] or 1.0)


def _is_constant(moments: MomentsOf) -> bool:
    """True if the variance is no more than what rounding makes of equal values."""
    variance = moments.variance
    rounding = moments.count * ROUNDING
    return variance <= rounding * variance + (rounding * moments.mean) ** 2


class MinMaxScaler(NumericPreprocessor):
    """(x - min) / (max - min), per column: from 0 to 1. A column of one value becomes 0."""

    _kind_of_statistic = Extremes

    def _learnt(self, column: str, found: Any) -> dict[str, Any]:
        low, high = learnt_range(found, column, type(self).__name__)
        return {f"min({column})": low, f"max({column})": high}

    def _transform_numbers(self, column: str, numbers: np.ndarray) -> np.ndarray:
        low, high = self.stats_[f"min({column})"], self.stats_[f"max({column})"]
        return scaled(numbers, low, _divisor(high - low))


class MaxAbsScaler(NumericPreprocessor):
    """x / max(|x|), per column: from -1 to 1, where 0 stays 0."""

    _kind_of_statistic = Extremes

    def _learnt(self, column: str, found: Any) -> dict[str, Any]:
        largest = found and max(abs(found[0]), abs(found[1]))
        return {f"abs_max({column})": learnt(largest, "maximum", column, type(self).__name__)}

    def _transform_numbers(self, column: str, numbers: np.ndarray) -> np.ndarray:
        return scaled(numbers, 0.0, _divisor(self.stats_[f"abs_max({column})"]))


class RobustScaler(NumericPreprocessor):
    """(x - median) / (high quantile - low quantile), per column: a few extreme values do not matter.

    The quantiles are exact. For that all values are looked at again after the pass: they are kept in memory, or
    in a temporary file when they are many.
    """

    def __init__(self, columns: list[str], quantile_range: tuple[float, float] = (0.25, 0.75)) -> None:
        super().__init__(columns)
        pair = tuple(quantile_range) if isinstance(quantile_range, tuple | list) else ()
        if len(pair) != 2 or not all(is_number(q) for q in pair) or not 0 <= pair[0] <= pair[1] <= 1:
            raise ConfigError(
                f"RobustScaler: quantile_range is {quantile_range!r}: give two numbers from 0 to 1, the lower one "
                "first."
            )
        self.quantile_range = (float(pair[0]), float(pair[1]))

    def _statistic(self, column: str) -> Statistic:
        low, high = self.quantile_range
        return Quantiles(column, (low, 0.5, high))

    def _learnt(self, column: str, found: Any) -> dict[str, Any]:
        names = ("low_quantile", "median", "high_quantile")
        return {
            f"{name}({column})": learnt(value, name.replace("_", " "), column, type(self).__name__)
            for name, value in zip(names, found or (None, None, None), strict=True)
        }

    def _transform_numbers(self, column: str, numbers: np.ndarray) -> np.ndarray:
        spread = self.stats_[f"high_quantile({column})"] - self.stats_[f"low_quantile({column})"]
        return scaled(numbers, self.stats_[f"median({column})"], _divisor(spread))


def _divisor(spread: float) -> float:
    """1 for a spread that is nothing but rounding: the column is only shifted then."""
    return 1.0 if spread < 10 * ROUNDING else float(spread)


NORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "l1": lambda table: np.abs(table).sum(axis=0),
    "l2": lambda table: np.sqrt(np.square(table).sum(axis=0)),
    "max": lambda table: np.abs(table).max(axis=0),
}


class Normalizer(ColumnPreprocessor):
    """Divides each row's values in the given columns by their common norm: "l1", "l2" or "max" (of absolute values).

    Rows of zeros stay as they are. A row in which one of the values is missing has no norm: all become missing.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], norm: str = "l2") -> None:
        super().__init__(columns)
        check_choice(norm, "Normalizer: norm", tuple(NORMS))
        self.norm = norm

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        pairs = [numbers_and_nulls(self._of(chunk, name), name, "Normalizer") for name in self.columns]
        table = np.array([numbers for numbers, _ in pairs], np.float64)
        missing = [nulls for _, nulls in pairs if nulls is not None]
        norms = NORMS[self.norm](table)
        norms[norms < 10 * np.finfo(np.float64).eps] = 1.0
        table /= norms
        mask = np.logical_or.reduce(missing) if missing else None
        replaced = {
            name: pa.array(as_float(row, numbers), mask=mask)
            for name, row, (numbers, _) in zip(self.columns, table, pairs, strict=True)
        }
        return with_columns(chunk, replaced)


class PowerTransformer(NumericPreprocessor):
    """The Yeo-Johnson or Box-Cox transformation with the given power (the lambda of the literature).

    Box-Cox is defined for numbers above 0 only. Nothing is learnt.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], power: float, method: str = "yeo-johnson") -> None:
        super().__init__(columns)
        if not is_number(power):
            raise ConfigError(f"PowerTransformer: power is {power!r}: give a number.")
        check_choice(method, "PowerTransformer: method", ("yeo-johnson", "box-cox"))
        self.power = power
        self.method = method

    def _transform_numbers(self, column: str, numbers: np.ndarray) -> np.ndarray:
        wide = numbers.astype(np.float64)
        if self.method == "yeo-johnson":
            return as_float(_yeo_johnson(wide, self.power), numbers)
        if (wide <= 0).any():
            raise DataError(
                f"PowerTransformer: column {column!r} has {wide[wide <= 0][0]}: Box-Cox is for numbers above 0. "
                "Use method='yeo-johnson'."
            )
        return as_float(_power_of(np.log(wide), self.power), numbers)


def _yeo_johnson(numbers: np.ndarray, power: float) -> np.ndarray:
    negative = numbers < 0
    logs = np.log1p(np.abs(numbers))
    return np.where(negative, -_power_of(logs, 2 - power), _power_of(logs, power))


def _power_of(logs: np.ndarray, power: float) -> np.ndarray:
    """(x ** power - 1) / power from log(x); log(x) itself where the power is 0. Exact for powers near 0 too."""
    if power == 0:
        return logs
    with np.errstate(over="ignore"):  # of the two branches of Yeo-Johnson one is not used
        result: np.ndarray = np.expm1(power * logs) / power
    return result
