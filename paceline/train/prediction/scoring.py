"""A predictor as a step of a dataset's plan."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError
from paceline.data.execution import Background
from paceline.data.operations.user_function import Spot, UserFunction
from paceline.data.operations.user_operation import UserOperation
from paceline.train.prediction.kinds import preprocessed

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.air.checkpoint import Checkpoint
    from paceline.data.block import Chunk
    from paceline.data.operations.user_operation import Processes
    from paceline.data.plan import BlockPlace
    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import Predictor


@dataclass(frozen=True)
class ScoringTask:
    """All that a process needs to know to predict. Small if the checkpoint is a reference to a directory."""

    checkpoint: Checkpoint
    predictor_cls: type[Predictor]
    predictor_kwargs: Mapping[str, Any]
    predict_kwargs: Mapping[str, Any]
    own_preprocessor: tuple[Preprocessor | None] | None
    """Takes the place of the checkpoint's; None: it was not replaced."""
    feature_columns: tuple[str, ...] | None
    keep_columns: tuple[str, ...]


class Scorer:
    """The predictor of one process. It is called with each batch."""

    def __init__(self, task: ScoringTask) -> None:
        self._task = task
        self._predictor = task.predictor_cls.from_checkpoint(task.checkpoint, **task.predictor_kwargs)
        if task.own_preprocessor is not None:
            (preprocessor,) = task.own_preprocessor
        else:
            preprocessor = self._predictor.get_preprocessor()
        self._preprocessor = preprocessor
        self._predictor.set_preprocessor(None)  # applied here, so that the model's columns can be chosen after it

    def __call__(self, batch: pa.Table) -> pa.Table:
        data = batch if self._preprocessor is None else preprocessed(batch, self._preprocessor)
        predictions = self._predictor.predict(self._features(data, batch), **self._task.predict_kwargs)
        for name in self._task.keep_columns:
            # As the model sees it: an encoded label is what its predictions compare with.
            kept = data if name in data.column_names else batch
            if name not in kept.column_names:
                raise DataError(f"keep_columns has {name!r}, but the columns of the dataset are {batch.column_names}")
            if name in predictions.column_names:
                raise DataError(
                    f"keep_columns has {name!r}, but the predictions have a column of that name too. Give the one of "
                    f'the dataset another name: dataset.rename_columns({{{name!r}: "..."}})'
                )
            predictions = predictions.append_column(kept.schema.field(name), kept.column(name))
        return predictions

    def _features(self, data: pa.Table, batch: pa.Table) -> pa.Table:
        """What the model looks at."""
        wanted = self._task.feature_columns
        if wanted is None:
            return data
        missing = [name for name in wanted if name not in data.column_names]
        if not missing:
            return data.select(list(wanted))
        if self._preprocessor is None:
            raise DataError(f"feature_columns has {missing[0]!r}, but the columns are {data.column_names}")
        if set(wanted) <= set(batch.column_names):  # older programs name what goes into the preprocessor
            return preprocessed(batch.select(list(wanted)), self._preprocessor)
        raise DataError(
            f"feature_columns has {missing[0]!r}, but after the preprocessor the columns are {data.column_names}, and "
            f"before it {batch.column_names}. Name columns of one of the two."
        )


class Scoring(UserOperation):
    """Reads the next rows of a block while the model works on those before."""

    def __init__(self, task: ScoringTask, batch_size: int, processes: Processes | None) -> None:
        from paceline.data.operations.work import BatchWork

        function = UserFunction("predict", Scorer, constructor_args=[task])
        function.label, function.origin = f"BatchPredictor({task.predictor_cls.__name__})", ""
        work = BatchWork(function, "pyarrow", zero_copy=True, keeps_row_count=True)
        super().__init__(
            work,
            processes=processes,
            keeps_row_count=True,
            row_local=True,
            batch_size=batch_size,
            exact_batches=True,
        )

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        empty: Chunk | None = None
        for first in chunks:
            if first.num_rows:
                yield from super().run(iter(Background(itertools.chain([first], chunks), depth=1)), place)
                return
            empty = first
        if empty is not None:
            yield from self._no_predictions(empty, place)

    def _no_predictions(self, empty: Chunk, place: BlockPlace) -> Iterator[Chunk]:
        """A block without rows has the columns of the predictions all the same, if the model can say which."""
        import pyarrow as pa

        if self._schema is not None:
            yield pa.RecordBatch.from_pylist([], schema=self._schema)
            return
        with contextlib.suppress(DataError):
            yield from self.work.results(empty, Spot(place.name, place.start, 0, place.fresh))
