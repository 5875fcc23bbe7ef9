"""A pipeline of dataset operations: map, groupby, join, sort, union, zip, write and read."""

import os
import tempfile

import numpy as np
import pandas as pd
import ray
from ray.data.aggregate import Count, Max, Mean

ctx = ray.data.DataContext.get_current()
ctx.execution_options.preserve_order = True

ds = ray.data.range(1000)
print(ds.schema())
ds = ds.map_batches(lambda batch: {"id": batch["id"], "key": batch["id"] % 3, "value": batch["id"] * 0.5})
ds = ds.filter(lambda row: row["id"] % 2 == 0)
ds = ds.add_column("square", lambda df: df["value"] ** 2)
assert ds.count() == 500
assert ds.take(2)[1]["square"] == 1.0
assert ds.sum("id") == sum(range(0, 1000, 2))
assert ds.columns() == ["id", "key", "value", "square"]

grouped = ds.groupby("key").aggregate(Count(), Mean("value"), Max("square"))
table = grouped.sort("key").to_pandas()
assert list(table["count()"]) == [167, 166, 167]
assert list(table.columns) == ["key", "count()", "mean(value)", "max(square)"]


def normalize(group: pd.DataFrame) -> pd.DataFrame:
    group["value"] = group["value"] - group["value"].mean()
    return group


centered = ds.groupby("key").map_groups(normalize, batch_format="pandas")
assert abs(centered.mean("value")) < 1e-9

names = ray.data.from_items([{"key": 0, "name": "zero"}, {"key": 1, "name": "one"}])
joined = ds.join(names, join_type="inner", num_partitions=2, on=("key",))
assert joined.count() == 167 + 166
assert set(joined.unique("name")) == {"zero", "one"}

with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "out")
    ds.repartition(4).write_parquet(path)
    assert len(os.listdir(path)) == 4
    back = ray.data.read_parquet(path, columns=["id", "value"])
    assert back.count() == 500
    assert back.sort("id", descending=True).take(1) == [{"id": 998, "value": 499.0}]
    csv_path = os.path.join(directory, "csv")
    ds.limit(10).select_columns(["id", "key"]).write_csv(csv_path)
    assert ray.data.read_csv(csv_path).to_pandas()["id"].tolist() == list(range(0, 20, 2))
    back = back.materialize()

train, test = ds.train_test_split(0.2)
parts = ds.split(2, equal=True)
assert [part.count() for part in parts] == [250, 250]
assert train.union(test).count() == 500
both = ray.data.range(5).zip(ray.data.range(5).map(lambda row: {"other": row["id"] + 1}))
assert both.take(1) == [{"id": 0, "other": 1}]
words = ray.data.from_items(["a b", "c"]).flat_map(lambda row: [{"word": w} for w in row["item"].split()])
assert [row["word"] for row in words.iter_rows()] == ["a", "b", "c"]
shapes = [batch["data"].shape for batch in ray.data.range_tensor(64, shape=(2, 3)).iter_batches(batch_size=32)]
assert shapes == [(32, 2, 3)] * 2
assert isinstance(ds.take_batch(3)["id"], np.ndarray)
print("mean of key 0:", table["mean(value)"][0], "max:", table["max(square)"].max())
