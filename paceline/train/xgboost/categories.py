"""Categories that all workers number alike.

XGBoost sees codes, and trees split on codes, so code 3 must be the same category on every worker and in every
dataset, whichever values a worker's rows happen to hold. Each worker lists the values of its rows, the lists go to
all workers, and the sorted union numbers them: the codes depend on the data alone, not on the number of workers.
The model keeps the names, so that a prediction is coded by name too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.data.column_arrays import contiguous
from paceline.train.trees.shard import shard_batches
from paceline.train.xgboost.collective import gathered
from paceline.train.xgboost.features import as_text, is_categorical


def agreed_categories(schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Array]:
    """The categories of each column that is categorical in "train", in these datasets (name -> features).

    All ranks call it. A column without any value has none: it is a column of missing numbers.
    """
    own: dict[str, set[str]] = {}
    known = {field.name for field in schemas[TRAIN_DATASET_KEY] if is_categorical(field.type)}
    for dataset, schema in schemas.items():
        columns = [field.name for field in schema if is_categorical(field.type) and field.name in known]
        if columns:
            for column, values in _values(dataset, columns).items():
                own.setdefault(column, set()).update(values)
    if not own:  # the same on every rank: all know the types of all columns
        return {}
    everyone = gathered({column: sorted(values) for column, values in own.items()})
    together = {column: sorted(set().union(*(each[column] for each in everyone))) for column in sorted(own)}
    return {column: pa.array(values, pa.large_string()) for column, values in together.items() if values}


def _values(dataset: str, columns: Sequence[str]) -> dict[str, set[str]]:
    """What stands in the columns of this rank's rows; nulls are no category."""
    found: dict[str, set[str]] = {column: set() for column in columns}
    for batch in shard_batches(dataset, columns=list(columns)):
        for column in columns:
            values = pc.unique(as_text(contiguous(batch.column(column))))
            found[column].update(values.drop_null().to_pylist())
    return found
