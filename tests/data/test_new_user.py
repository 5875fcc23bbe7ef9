"""What people run into on their first day: slips that must be told where they are made, in words that help."""

from __future__ import annotations

import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import torch

import paceline.data
from paceline import data
from paceline.air import DataConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import (
    ConfigError,
    DataError,
    DataNotFoundError,
    SerializationError,
    TrainingFailedError,
)
from paceline.data.preprocessors import Concatenator
from paceline.train import DataParallelTrainer
from paceline.train.datasets import check_datasets


class Adding:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"] + self.number}


def numbers(rows: int = 5) -> data.Dataset:
    return data.range(rows)


# -- memory of the user's -----------------------------------------------------------------


def test_what_happens_to_arrays_and_frames_later_does_not_reach_the_dataset() -> None:
    array, frame = np.zeros(3), pd.DataFrame({"x": [0.0, 0.0], "y": [0, 0]}, index=pd.Index([1, 2], name="i"))
    of_array, of_frame = data.from_numpy(array), data.from_pandas(frame)
    array[:] = 9
    frame.iloc[:, :] = 9
    assert of_array.sum("data") == 0
    assert of_frame.sum(["x", "y"]) == {"sum(x)": 0, "sum(y)": 0}


# -- what would be lost or doubled silently -----------------------------------------------


def test_a_misspelt_column_of_concatenator_is_told_with_the_near_miss() -> None:
    ds = data.from_items([{"width": 1.0, "height": 2.0}])
    with pytest.warns(UserWarning, match=r"goes on without \['widht'\].*did you mean 'width'\?") as told:
        transformed = Concatenator(include=["widht", "height"]).transform(ds)
    assert told[0].filename == __file__
    assert transformed.take(1)[0]["concat_out"].tolist() == [2.0]


def test_concatenator_tells_when_rows_come_if_columns_are_known_only_then() -> None:
    ds = data.from_items([{"a": 1.0}]).map(lambda row: row)
    transformed = Concatenator(exclude=["b"]).transform(ds)
    with pytest.warns(UserWarning, match=r"goes on without \['b'\]"):
        transformed.take(1)


@pytest.mark.parametrize("name", ["parquet", "csv", "json", "numpy", "tfrecords"])
def test_writing_to_a_directory_with_files_of_the_format_is_told(name: str, tmp_path: Path) -> None:
    arguments = {"column": "id"} if name == "numpy" else {}
    write = getattr(numbers(), f"write_{name}")
    write(tmp_path, **arguments)
    (tmp_path / "notes.txt").touch()
    with pytest.warns(UserWarning, match=rf"there are 1 .* already.*read_{name} on that directory") as told:
        write(tmp_path, **arguments)
    assert told[0].filename == __file__
    assert getattr(data, f"read_{name}")(str(tmp_path)).count() == 10


def test_a_seed_without_a_shuffle_is_told() -> None:
    with pytest.warns(UserWarning, match="seed has no effect without shuffle=True"):
        numbers().train_test_split(0.2, seed=3)


def test_equal_parts_of_fewer_rows_than_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"leave out all of the 5 row\(s\), which are fewer than 6 parts"):
        numbers().split(6, equal=True)


def test_samples_of_different_length_are_refused() -> None:
    class Uneven(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return (index,) if index == 1 else (index, index)

    with pytest.raises(DataError, match="Uneven: item 1 has 1 values and item 0 has 2"):
        data.from_torch(Uneven()).take(3)


def test_count_tells_what_was_skipped(tmp_path: Path) -> None:
    numbers().write_parquet(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"nothing of the kind")
    with pytest.warns(UserWarning, match=r"count: 5 rows without what could not be read.*broken\.parquet"):
        assert data.read_parquet(str(tmp_path), on_error="skip").count() == 5


# -- wrong arguments ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: data.from_items(5), r"from_items: expected a list of rows or values, not int"),
        (lambda: data.from_items({"x": [1]}), r"not dict\. A single row is from_items\(\[row\]\)"),
        (lambda: data.from_items(pd.DataFrame({"x": [1]})), r"from_pandas"),
        (lambda: data.from_numpy([[1, 2], [3]]), r"the list holds list\. Use from_items for a list of lists"),
        (lambda: data.read_images("x", size=8, mode="RGB"), r"size=8: give \(height, width\)"),
        (lambda: data.read_images("x", mode="RGBX3"), r"mode='RGBX3': give a mode of Pillow"),
        (lambda: data.read_parquet(pd.DataFrame({"x": [1]})), r"paths is a DataFrame; .* from_pandas"),
        (lambda: data.read_parquet({"x": 1}), "paths is a dict"),
        (lambda: data.read_parquet(pd.Series(["x"])), "paths is a Series"),
        (lambda: numbers().map(lambda row: row, fn_args=5), r"map: fn_args is 5: give a list or tuple"),
        (lambda: numbers().map(Adding, fn_constructor_args=5), "map: fn_constructor_args is 5: give a list"),
        (lambda: numbers().map(lambda row: row, fn_kwargs=[1]), "fn_kwargs is .*: give a dict"),
        (lambda: numbers().filter("id > 3"), r"text goes to expr: filter\(expr='id > 3'\)"),
        (lambda: numbers().write_parquet(None), "write_parquet: the path is None"),
        (lambda: numbers().write_csv("x", sep=";"), r"write_csv has no setting 'sep': .*write_options"),
        (lambda: numbers().iter_torch_batches(collate_fn=3), "collate_fn is 3: give a function"),
        (lambda: numbers().iter_torch_batches(dtypes="float33"), "dtypes is 'float33': .*torch.float32"),
        (lambda: numbers().iter_torch_batches(dtypes={"id": str}), r"dtypes\['id'\] is .*torch.float32"),
        (lambda: DataConfig(datasets_to_split="train"), r"use a list of dataset names, \['train'\], or 'all'"),
    ],
)
def test_wrong_arguments_are_refused_in_words(call: Any, says: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.png").touch()
    with pytest.raises(ConfigError, match=says):
        call()


def test_an_unknown_setting_of_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write_parquet: pyarrow\.parquet\.ParquetWriter does not take .*colour"):
        numbers().write_parquet(tmp_path, colour="red")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, "float32", "torch.float32", np.float32, np.dtype("float32"), "f4"])
def test_types_for_torch_in_all_their_spellings(dtype: Any) -> None:
    assert next(iter(numbers().iter_torch_batches(dtypes=dtype)))["id"].dtype is torch.float32
    assert next(iter(numbers().iter_torch_batches(dtypes={"id": dtype})))["id"].dtype is torch.float32
    features, _ = next(iter(numbers().to_torch(feature_column_dtypes=dtype)))
    assert features.dtype is torch.float32


def test_python_names_the_class_that_users_know() -> None:
    with pytest.raises(TypeError, match=r"^Dataset\.join\(\) got an unexpected keyword argument 'left_on'"):
        numbers().join(numbers(), left_on="id")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Dataset\.iter_batches\(\)"):
        numbers().iter_batches(size=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^DataIterator\.iter_batches\(\)"):
        numbers().iterator().iter_batches(size=3)  # type: ignore[call-arg]


# -- things that are done in another way here ---------------------------------------------


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda: numbers()["id"], r"select_columns\(\['id'\]\)"),
        (lambda: numbers()[3], r"take\(n\)"),
        (lambda: next(iter(numbers().iterator())), r"iter_batches\(\)"),
        (lambda: len(numbers().iterator()), r"use count\(\)"),
    ],
)
def test_what_python_offers_is_answered_with_the_method_to_use(do: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        do()
    assert numbers().iterator()


def test_a_function_written_for_frames_is_told_of_the_batch_format() -> None:
    for function in (lambda batch: batch.assign(y=1), lambda batch: {"y": batch["id"].fillna(0)}):
        with pytest.raises(DataError, match='It was given a dict of numpy arrays; batch_format="pandas" gives'):
            numbers().map_batches(function).take(1)
    with pytest.raises(DataError, match=r'It was given a dict, a value per column: row\["x"\]'):
        numbers().map(lambda row: {"y": row.id}).take(1)


@pytest.mark.parametrize("answer", [True, np.True_, np.array(True), np.array([True]), torch.tensor(True), 1])
def test_a_filter_takes_truth_values_of_all_libraries(answer: Any) -> None:
    assert numbers().filter(lambda row: answer).count() == 5


@pytest.mark.parametrize("answer", ["no", 2, 0.0, [], None])
def test_a_filter_that_gives_something_else_is_refused(answer: Any) -> None:
    with pytest.raises(DataError, match=r"on row 0 of range\(5\): return True or False"):
        numbers().filter(lambda row: answer).take(1)


def test_an_exception_of_collate_fn_says_where_it_was() -> None:
    def broken(batch: dict[str, Any]) -> Any:
        return batch["x"]

    for batches in (numbers().iter_torch_batches(collate_fn=broken), numbers().iter_batches(_collate_fn=broken)):
        with pytest.raises(KeyError) as caught:
            next(iter(batches))
        (note,) = caught.value.__notes__
        assert note.startswith("This happened in collate_fn=")
        assert note.endswith("broken. It was given a dict of numpy arrays: ['id'].")


def test_what_cannot_go_to_other_processes_belongs_into_a_constructor() -> None:
    lock = threading.Lock()

    def locked(batch: Any) -> Any:
        with lock:
            return batch

    says = r"^map_batches\(locked\) closure variable 'lock' .* processes of concurrency=.* constructor of a class"
    with pytest.raises(SerializationError, match=says):
        numbers().map_batches(locked, concurrency=1).take(1)


# -- names in messages --------------------------------------------------------------------


def test_places_in_memory_read_well() -> None:
    def fails_at_1030(batch: dict[str, Any]) -> Any:
        if batch["item"][0] >= 1024:
            raise ValueError("no")
        return batch

    with pytest.raises(DataError, match=r"rows 0 to 9 of in-memory table, block 1 \(rows 1024 to 2047\): ValueError"):
        data.from_items(list(range(3000))).map_batches(fails_at_1030, batch_size=10).count()
    with pytest.raises(DataError, match=r"failed on rows 0 to 2 of in-memory table: ZeroDivisionError"):
        data.from_items([1, 2, 3]).map_batches(lambda batch: 1 / 0).count()


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda ds: ds.groupby("idd").count().take(1), r"^groupby: there is no column 'idd': did you mean 'id'\?"),
        (lambda ds: ds.groupby("idd").map_groups(lambda group: group).take(1), r"^groupby\(idd\): there is no column"),
        (lambda ds: ds.sum("idd"), r"^sum\(idd\): there is no column 'idd': did you mean 'id'\?"),
        (
            lambda ds: ds.join(data.from_items([{"id": "1"}]), on="id").take(1),
            r"is int64 on the left and string on the right, and values of these types cannot be compared",
        ),
    ],
)
def test_messages_name_what_was_called(use: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        use(numbers())


def test_a_dataset_of_another_library_is_named_with_the_way_to_bring_it() -> None:
    hugging_face = pytest.importorskip("datasets").Dataset.from_dict({"x": [1]})
    with pytest.raises(ConfigError, match=r"not datasets\.arrow_dataset\.Dataset\. .*from_huggingface\(\)"):
        check_datasets({"train": hugging_face}, None)
    with pytest.raises(ConfigError, match=r"not pandas.*\.DataFrame\. .*from_pandas\(\)"):
        check_datasets({"train": pd.DataFrame()}, None)


# -- places that are not there ------------------------------------------------------------


def test_a_server_that_does_not_answer_is_no_missing_file() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(DataError, match=r"cannot be reached: .*Cannot connect") as caught:
        data.read_csv(f"http://127.0.0.1:{port}/a.csv")
    assert not isinstance(caught.value, DataNotFoundError)


def test_a_filesystem_that_cannot_be_made_is_told_in_one_line() -> None:
    class Unreachable(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "unreachable"

        def __init__(self, **settings: Any) -> None:
            raise OSError("no name node\n  at java.lang.Thread\n  at java.lang.Object")

    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    with pytest.raises(DataError, match=r"unreachable://a/b\.csv cannot be reached: OSError: no name node\.$"):
        data.read_csv("unreachable://a/b.csv")


def test_a_relative_path_in_a_worker_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    advice = "each worker runs in a directory of its own"
    with pytest.raises(DataNotFoundError) as outside:
        data.read_csv("missing.csv")
    monkeypatch.setattr(session, "current", object)
    with pytest.raises(DataNotFoundError) as inside:
        data.read_csv("missing.csv")
    with pytest.raises(DataNotFoundError) as absolute:
        data.read_csv(str(tmp_path / "missing.csv"))
    assert [advice in str(each.value) for each in (outside, inside, absolute)] == [False, True, False]


# -- failures in processes ----------------------------------------------------------------


def test_a_run_shows_the_line_of_the_function_in_another_process(tmp_path: Path) -> None:
    def helper(batch: Any) -> Any:
        raise ValueError("deep inside")

    def calls_helper(batch: Any) -> Any:
        return helper(batch)

    def read_all() -> None:
        for _ in session.get_dataset_shard("train").iter_batches():
            pass

    trainer = DataParallelTrainer(
        read_all,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path)),
        datasets={"train": numbers().map_batches(calls_helper, concurrency=1, keeps_row_count=True)},
    )
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    text = str(caught.value)
    assert "in helper" in text
    assert 'raise ValueError("deep inside")' in text
    assert "in read_all" in text
    assert "concurrent" not in text


# -- names of the older API ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("DataContext", "arguments of the methods"),
        ("DatasetContext", "arguments of the methods"),
        ("ExecutionOptions", "arguments of the methods"),
        ("set_progress_bars", "no progress bars"),
        ("from_polars", r"from_arrow\(\)"),
        ("from_mars", r"from_pandas\(\)"),
        ("read_parquet_bulk", r"read_parquet\(\)"),
        ("read_datasource", "read_ functions"),
    ],
)
def test_names_that_are_not_here_say_what_is(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=rf"paceline\.data\.{name} is not in this version: .*{advice}"):
        getattr(paceline.data, name)


def test_old_spellings_work(tmp_path: Path) -> None:
    numbers().write_parquet(tmp_path)
    ds = data.read_parquet(str(tmp_path))
    (file,) = tmp_path.glob("*.parquet")
    for each in (ds, ds.lazy(), ds.limit(3), ds.sort("id"), ds.random_shuffle(), ds.union(ds)):
        assert each.input_files() == [str(file)]
    executed = ds.fully_executed()
    file.unlink()
    assert executed.count() == 5
    assert executed.input_files() == []
    assert isinstance(executed.take_batch(1), executed.default_batch_format())
    assert len(list(executed.iter_batches(prefetch_blocks=2, batch_size=2))) == 3
    assert data.range_table(3).take_all() == [{"value": 0}, {"value": 1}, {"value": 2}]


def test_settings_of_a_cluster_are_told_to_have_no_effect(tmp_path: Path) -> None:
    numbers().write_csv(tmp_path)
    with pytest.warns(UserWarning, match="ray_remote_args has no effect") as told:
        ds = data.read_csv(str(tmp_path), ray_remote_args={"num_cpus": 2})
    assert told[0].filename == __file__
    assert ds.count() == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.read_csv(str(tmp_path), ray_remote_args=None)
