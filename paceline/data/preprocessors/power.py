"""PowerTransformer: makes skewed columns more like a normal distribution, by a power that is given."""

from __future__ import annotations

import numpy as np

from paceline.air.checks import check_choice, is_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors.numeric import NumericPreprocessor, as_float


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
