"""Every preprocessor is stored in a checkpoint as data, and does the same in another process afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import paceline.data
from paceline.air import Checkpoint
from paceline.data import preprocessors
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import (
    BatchMapper,
    Categorizer,
    Chain,
    Concatenator,
    CountVectorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiHotEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    TorchVisionPreprocessor,
    UniformKBinsDiscretizer,
)

ROWS = 40


def table() -> pa.Table:
    rng = np.random.default_rng(11)
    columns = {
        "x": rng.normal(2, 3, ROWS),
        "y": rng.integers(1, 9, ROWS),
        "holes": pa.array([None if number % 5 == 0 else number / 7 for number in range(ROWS)]),
        "c": rng.choice(["a", "b", "ü"], ROWS).tolist(),
        "day": pa.array(rng.integers(0, 5, ROWS), pa.int32()).cast(pa.date32()),
        "tags": [rng.choice(["p", "q", "r"], 2).tolist() for _ in range(ROWS)],
        "text": [" ".join(rng.choice(["one", "two", "three"], 4)) for _ in range(ROWS)],
        "image": paceline.data.from_numpy(rng.random((ROWS, 2, 2), np.float32)).to_arrow()["data"],
    }
    return pa.table(columns)


def built_in() -> dict[str, list[Preprocessor]]:
    """By name of the class: those that are stored without pickle."""
    weekday = pd.CategoricalDtype(["b", "a"], ordered=True)
    return {
        "Categorizer": [Categorizer(["c", "y"]), Categorizer(["c", "day"], dtypes={"c": weekday})],
        "Chain": [Chain(SimpleImputer(["holes"]), StandardScaler(["holes", "x"]), Chain(OneHotEncoder(["c"])))],
        "Concatenator": [Concatenator("xy", include=["x", "y"], dtype=np.float32)],
        "CountVectorizer": [CountVectorizer(["text"], max_features=2)],
        "CustomKBinsDiscretizer": [CustomKBinsDiscretizer(["x"], bins=[-100, 0, 2.5, 100])],
        "FeatureHasher": [FeatureHasher(["x", "y"], num_features=5)],
        "HashingVectorizer": [HashingVectorizer(["text"], num_features=5)],
        "LabelEncoder": [LabelEncoder("c"), LabelEncoder("day")],
        "MaxAbsScaler": [MaxAbsScaler(["x"])],
        "MinMaxScaler": [MinMaxScaler(["x", "y"])],
        "MultiHotEncoder": [MultiHotEncoder(["tags", "c"], max_categories={"tags": 2})],
        "Normalizer": [Normalizer(["x", "y"], norm="l1")],
        "OneHotEncoder": [OneHotEncoder(["c", "y", "tags"], max_categories={"y": 3})],
        "OrdinalEncoder": [OrdinalEncoder(["c", "y", "day"]), OrdinalEncoder(["tags"], encode_lists=False)],
        "PowerTransformer": [PowerTransformer(["x"], power=0.5)],
        "RobustScaler": [RobustScaler(["x"], quantile_range=(0.1, 0.9))],
        "SimpleImputer": [
            SimpleImputer(["holes"]),
            SimpleImputer(["c"], strategy="most_frequent"),
            SimpleImputer(["c"], strategy="constant", fill_value="none"),
        ],
        "StandardScaler": [StandardScaler(["x", "y"])],
        "Tokenizer": [Tokenizer(["text"])],
        "UniformKBinsDiscretizer": [UniformKBinsDiscretizer(["x"], bins=4)],
    }


def with_functions() -> dict[str, list[Preprocessor]]:
    """Those that hold a function of the user's, which is stored by pickle."""
    letters: Callable[[str], list[str]] = lambda text: list(text)  # noqa: E731
    return {
        "BatchMapper": [BatchMapper(lambda df: df.assign(x=df["x"] + 1), "pandas", batch_size=8)],
        "TorchVisionPreprocessor": [TorchVisionPreprocessor(["image"], lambda image: image * 2, batched=True)],
        "CountVectorizer": [CountVectorizer(["text"], tokenization_fn=letters)],
        "HashingVectorizer": [HashingVectorizer(["text"], 3, tokenization_fn=letters)],
        "Tokenizer": [Tokenizer(["text"], tokenization_fn=letters)],
    }


CASES = [
    pytest.param(preprocessor, pickles, id=f"{name}-{number}{'-function' if pickles else ''}")
    for pickles, group in ((False, built_in()), (True, with_functions()))
    for name, members in group.items()
    for number, preprocessor in enumerate(members)
]

LOAD_AND_TRANSFORM = """
import json, pickle, sys
import pyarrow as pa
from paceline.air import Checkpoint

loads = pickle.loads
def refuse(*args, **kwargs):
    raise AssertionError("a preprocessor without functions was unpickled")

given = pa.ipc.open_file(sys.argv[1]).read_all()
for case in json.loads(sys.argv[2]):
    pickle.loads = loads if case["pickles"] else refuse
    preprocessor = Checkpoint.from_directory(case["checkpoint"]).get_preprocessor()
    result = preprocessor.transform_batch(given)
    with pa.ipc.new_file(case["result"], result.schema) as file:
        file.write_table(result)
"""


def write(path: Path, content: pa.Table) -> None:
    with pa.ipc.new_file(path, content.schema) as file:
        file.write_table(content)


def test_every_preprocessor_is_tested_here() -> None:
    assert set(built_in()) | set(with_functions()) == set(preprocessors.__all__) - {"Preprocessor"}
    assert len(set(preprocessors.__all__) - {"Preprocessor"}) == 22


@pytest.mark.parametrize(("preprocessor", "pickles"), CASES)
def test_state_is_json_and_gives_an_equal_preprocessor(preprocessor: Preprocessor, pickles: bool) -> None:
    given = table()
    stored_before = json.dumps(preprocessor.to_state())
    unfitted = type(preprocessor).from_state(json.loads(stored_before))
    assert unfitted.fit_status() == preprocessor.fit_status()
    fitted = unfitted.fit(paceline.data.from_arrow(given))
    stored = json.dumps(fitted.to_state())
    assert ("$pickle" in stored) == pickles
    again = type(preprocessor).from_state(json.loads(stored))
    assert again.fit_status() == fitted.fit_status()
    assert again.transform_batch(given).equals(fitted.transform_batch(given))
    if not pickles:
        assert repr(again) == repr(fitted)
        assert json.dumps(again.to_state()) == stored


def test_every_preprocessor_does_the_same_from_a_checkpoint_in_another_process(tmp_path: Path) -> None:
    given = table()
    write(tmp_path / "given.arrow", given)
    cases, expected = [], {}
    for param in CASES:
        preprocessor, pickles = param.values
        fitted = type(preprocessor).from_state(preprocessor.to_state()).fit(paceline.data.from_arrow(given))
        checkpoint = Checkpoint.from_dict({"weights": 1})
        checkpoint.set_preprocessor(fitted)
        directory = checkpoint.to_directory(str(tmp_path / f"checkpoint-{param.id}"))
        result = tmp_path / f"{param.id}.arrow"
        cases.append({"checkpoint": directory, "result": str(result), "pickles": pickles})
        expected[result] = fitted.transform_batch(given)
    arguments = [sys.executable, "-c", LOAD_AND_TRANSFORM, str(tmp_path / "given.arrow"), json.dumps(cases)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path, content in expected.items():
        assert pa.ipc.open_file(path).read_all().equals(content), path.name


def test_many_categories(tmp_path: Path) -> None:
    ds = paceline.data.from_arrow(pa.table({"c": [f"value {number}" for number in range(5000)], "n": range(5000)}))
    encoder = OrdinalEncoder(["c", "n"]).fit(ds)
    checkpoint = Checkpoint.from_dict({})
    checkpoint.set_preprocessor(encoder)
    loaded = Checkpoint.from_directory(checkpoint.to_directory(str(tmp_path / "checkpoint"))).get_preprocessor()
    assert loaded.stats_ == encoder.stats_
    pd.testing.assert_frame_equal(loaded.transform(ds).to_pandas(), encoder.transform(ds).to_pandas())
