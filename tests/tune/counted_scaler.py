"""A preprocessor that leaves word each time it is fitted; workers import this file, which costs next to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paceline.data.preprocessor import Preprocessor
from paceline.testing.processes import Marks

if TYPE_CHECKING:
    import pandas as pd


class CountedScaler(Preprocessor):
    """Moves a column so that its mean is zero."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def _fit(self, dataset: Any) -> Self:
        Marks(self.directory).say("fitted")
        self.stats_ = {"mean": dataset.mean("x")}
        return self

    def _transform_pandas(self, df: pd.DataFrame) -> pd.DataFrame:
        return df.assign(x=df["x"] - self.stats_["mean"])
