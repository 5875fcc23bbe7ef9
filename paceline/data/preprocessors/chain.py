"""Chain: several preprocessors, one after the other, as one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError
from paceline.data.preprocessor import D, FitStatus, Preprocessor

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from paceline.data.statistics import Statistic


class Chain(Preprocessor):
    """Applies preprocessors in sequence; each is fitted on what those before it make of the dataset.

    Those that do not look at columns which an earlier one changes are fitted together, in one pass over the data.
    """

    def __init__(self, *preprocessors: Preprocessor) -> None:
        for preprocessor in preprocessors:
            if not isinstance(preprocessor, Preprocessor):
                raise ConfigError(
                    f"Chain takes preprocessors one by one, Chain(first, second), not {repr(preprocessor)[:80]}."
                )
        self.preprocessors = preprocessors

    @property
    def _row_local(self) -> bool:  # type: ignore[override]
        return all(preprocessor._row_local for preprocessor in self.preprocessors)

    def fit_status(self) -> FitStatus:
        """FITTED if all are that can be, PARTIALLY_FITTED if some are."""
        statuses = {preprocessor.fit_status() for preprocessor in self.preprocessors} - {FitStatus.NOT_FITTABLE}
        if not statuses:
            return FitStatus.NOT_FITTABLE
        return statuses.pop() if len(statuses) == 1 else FitStatus.PARTIALLY_FITTED

    def transform(self, ds: D) -> D:
        """The dataset with all preprocessors applied; lazily, when its rows are read."""
        self._check_fitted("transform")
        for preprocessor in self.preprocessors:
            ds = preprocessor.transform(ds)
        transformed: Any = ds
        self._transformed = weakref.ref(transformed)
        return ds

    # -- fitting --------------------------------------------------------------------------

    def _fit(self, ds: Any) -> Chain:
        together: list[Preprocessor] = []  # not fitted yet; all can be on ds as it is
        ahead: list[Preprocessor] = []  # not applied to ds yet
        for stage in self._stages():
            fittable = stage.fit_status() is not FitStatus.NOT_FITTABLE
            if fittable and ahead and not _sees_the_same(stage, ahead, ds):
                _fit_together(together, ds)
                for earlier in ahead:
                    ds = earlier.transform(ds)
                together, ahead = [], []
            if fittable:
                together.append(stage)
            ahead.append(stage)
        _fit_together(together, ds)
        return self

    def _stages(self) -> list[Preprocessor]:
        """All preprocessors, those of chains inside this one too."""
        stages: list[Preprocessor] = []
        for preprocessor in self.preprocessors:
            stages += preprocessor._stages() if isinstance(preprocessor, Chain) else [preprocessor]
        return stages

    # -- for the pipeline -----------------------------------------------------------------

    def _transform_chunk(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        for preprocessor in self.preprocessors:
            chunk = preprocessor._transform_chunk(chunk)
        return chunk

    def _transform_array(self, array: np.ndarray) -> Any:
        batch: Any = array
        for preprocessor in self.preprocessors:
            batch = preprocessor.transform_batch(batch)
        return batch

    def _snapshot(self) -> Self:
        return type(self)(*(preprocessor._snapshot() for preprocessor in self.preprocessors))

    def _arguments(self) -> dict[str, Any]:
        return {"preprocessors": list(self.preprocessors)}

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> Self:
        return cls(*arguments["preprocessors"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.preprocessors))})"


def _sees_the_same(stage: Preprocessor, ahead: list[Preprocessor], ds: Any) -> bool:
    """True if fitting gives the same on the dataset as it is and on what those ahead make of it.

    Which columns an encoder adds is known only once it is fitted. But they are new ones: a stage that needs only
    columns that are there already does not need them.
    """
    needed = stage._input_columns()
    if needed is None:
        return False
    unchanged = set(ds.plan.schema().names)
    for earlier in ahead:
        changed = earlier._output_columns()
        if changed is None:
            return False
        unchanged.difference_update(changed)
    return unchanged.issuperset(needed)


def _fit_together(stages: list[Preprocessor], ds: Any) -> None:
    """Fit preprocessors on the same dataset; all those that only need statistics, in one pass."""
    from paceline.data.statistics import check_columns, compute

    statistics: dict[Preprocessor, list[Statistic]] = {}
    for stage in stages:
        if stage._fits_by_statistics():
            statistics[stage] = stage._statistics()
            check_columns(ds.plan.schema(), statistics[stage], type(stage).__name__)
        else:
            stage._fit(ds)
    values = compute(ds.plan, [statistic for wanted in statistics.values() for statistic in wanted], "Chain")
    for stage, wanted in statistics.items():
        stage._learn({statistic: values[statistic] for statistic in wanted})
    for stage in stages:
        stage._fitted = True
