"""CountVectorizer and HashingVectorizer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.feature_extraction.text import CountVectorizer as SkCountVectorizer

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import CountVectorizer, HashingVectorizer

WORDS = ["like", "Python", "I", "dislike", "naïve", "the", "ü", "don't"]


def texts(count: int = 120) -> list[str]:
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count)]


class TestCountVectorizer:
    def test_equals_scikit_learn(self) -> None:
        corpus = texts()
        ds = paceline.data.from_items([{"t": text, "x": 1} for text in corpus])
        result = CountVectorizer(["t"]).fit_transform(ds).to_pandas()
        reference = SkCountVectorizer(tokenizer=lambda text: text.split(" "), token_pattern=None, lowercase=False)
        counts = reference.fit_transform(corpus).toarray()
        expected = pd.DataFrame(counts, columns=[f"t_{token}" for token in reference.get_feature_names_out()])
        assert result.columns[0] == "x"
        pd.testing.assert_frame_equal(result[list(expected.columns)], expected)
        assert len(result.columns) == 1 + len(expected.columns)

    def test_the_most_frequent_tokens_come_first_and_of_equals_the_earlier_one(self) -> None:
        corpus = ["Jimmy likes volleyball", "Bob likes volleyball too", "Bob also likes fruit jerky"]
        vectorizer = CountVectorizer(["c"])
        result = vectorizer.fit_transform(paceline.data.from_items([{"c": text} for text in corpus])).to_pandas()
        order = ["likes", "volleyball", "Bob", "Jimmy", "too", "also", "fruit", "jerky"]
        assert list(result.columns) == [f"c_{token}" for token in order]
        assert list(vectorizer.stats_["token_counts(c)"].items())[:2] == [("likes", 3), ("volleyball", 2)]

    def test_max_features(self) -> None:
        ds = paceline.data.from_items([{"a": "x y z y", "b": "p q q"}, {"a": "z y", "b": "r"}])
        result = CountVectorizer(["a", "b"], max_features=2).fit_transform(ds).to_pandas()
        assert result.to_dict("list") == {"a_y": [2, 1], "a_z": [1, 1], "b_q": [2, 0], "b_p": [1, 0]}

    def test_tokens_of_another_function(self) -> None:
        ds = paceline.data.from_items([{"t": "abc"}, {"t": "ca"}, {"t": ""}])
        result = CountVectorizer(["t"], tokenization_fn=list).fit_transform(ds).to_pandas()
        assert result.to_dict("list") == {"t_a": [1, 1, 0], "t_c": [1, 1, 0], "t_b": [1, 0, 0]}

    def test_unseen_tokens_and_missing_texts_in_transforming(self) -> None:
        vectorizer = CountVectorizer(["t"]).fit(paceline.data.from_items([{"t": "a b"}]))
        result = vectorizer.transform_batch(pd.DataFrame({"t": ["b new b", None, ""]}))
        assert result.to_dict("list") == {"t_a": [0, 0, 0], "t_b": [2, 0, 0]}

    def test_missing_texts_are_refused_in_fitting_with_advice(self) -> None:
        ds = paceline.data.from_items([{"t": "a"}, {"t": None}])
        with pytest.raises(DataError, match=r"(?s)'t'.*1 missing.*SimpleImputer"):
            CountVectorizer(["t"]).fit(ds)

    def test_columns_that_are_no_text(self) -> None:
        with pytest.raises(DataError, match=r"CountVectorizer.*'t'.*int64.*text"):
            CountVectorizer(["t"]).fit(paceline.data.from_items([{"t": 1}]))

    def test_a_function_that_fails_is_named(self) -> None:
        def picky(text: str) -> list[str]:
            raise KeyError(text)

        ds = paceline.data.from_items([{"t": "a b"}])
        with pytest.raises(DataError, match=r"'t'.*tokenization_fn.*picky.*KeyError.*'a b'") as raised:
            CountVectorizer(["t"], tokenization_fn=picky).fit(ds)
        causes, error = [], raised.value
        while error is not None:
            causes.append(type(error))
            error = error.__cause__  # type: ignore[assignment]
        assert KeyError in causes

    def test_a_function_that_returns_something_else(self) -> None:
        ds = paceline.data.from_items([{"t": "a b"}])
        for function in (str, len, lambda text: [1, 2], lambda text: None):
            with pytest.raises(DataError, match="list of strings"):
                CountVectorizer(["t"], tokenization_fn=function).fit(ds)  # type: ignore[arg-type]


class TestHashingVectorizer:
    def test_counts_every_token_under_its_hash(self) -> None:
        corpus = texts()
        ds = paceline.data.from_items([{"t": text} for text in corpus])
        vectorizer = HashingVectorizer(["t"], num_features=16)
        result = vectorizer.transform(ds).to_pandas()
        assert list(result.columns) == [f"hash_t_{index}" for index in range(16)]
        assert result.sum(axis=1).tolist() == [len(text.split(" ")) for text in corpus]
        alone = {word: vectorizer.transform_batch(pd.DataFrame({"t": [word]})).to_numpy()[0] for word in WORDS}
        expected = [np.sum([alone[word] for word in text.split(" ")], axis=0) for text in corpus]
        np.testing.assert_array_equal(result.to_numpy(), expected)

    def test_hashes_are_the_same_on_every_machine_and_spread_evenly(self) -> None:
        known = HashingVectorizer(["t"], 8).transform_batch(pd.DataFrame({"t": ["I", "like", "Python", "naïve"]}))
        assert known.to_numpy().argmax(axis=1).tolist() == KNOWN_PLACES
        many = HashingVectorizer(["t"], 10).transform_batch(
            pd.DataFrame({"t": [" ".join(f"token{number}" for number in range(10_000))]})
        )
        assert many.to_numpy().min() > 850
        assert many.to_numpy().max() < 1150

    def test_several_columns_missing_texts_and_another_function(self) -> None:
        vectorizer = HashingVectorizer(["a", "b"], 2, tokenization_fn=lambda text: text.split(","))
        result = vectorizer.transform_batch(pa.table({"a": ["x,y", None], "b": ["z", "z,z,z"]}))
        assert result.column_names == ["hash_a_0", "hash_a_1", "hash_b_0", "hash_b_1"]
        rows = np.array([column.to_numpy() for column in result.columns]).T
        assert rows[:, :2].sum(axis=1).tolist() == [2, 0]
        assert rows[:, 2:].sum(axis=1).tolist() == [1, 3]

    def test_needs_no_fitting(self) -> None:
        vectorizer = HashingVectorizer(["t"], 4)
        assert vectorizer.fit_status() == vectorizer.FitStatus.NOT_FITTABLE


KNOWN_PLACES = [5, 5, 1, 6]
"""Part of every stored model that hashes: they must never change."""


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="num_features"):
        HashingVectorizer(["t"], 0)
    with pytest.raises(ConfigError, match="max_features"):
        CountVectorizer(["t"], max_features=0)
    with pytest.raises(ConfigError, match="tokenization_fn"):
        CountVectorizer(["t"], tokenization_fn="split")  # type: ignore[arg-type]
