"""Vectorizers: texts as counts of their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import whole_number
from paceline.air.errors import DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors.categories import place_numbers
from paceline.data.preprocessors.columns import checked_columns, column_of
from paceline.data.preprocessors.expansion import check_unique, counts_per_row, expanded
from paceline.data.preprocessors.hasher import hash_place
from paceline.data.preprocessors.tokenizer import checked_tokenization
from paceline.data.statistics import Statistic
from paceline.data.statistics_text import TokenCounts, Tokenization, tokens_of


class CountVectorizer(Preprocessor):
    """Replaces a column of texts by one column for each token, "<column>_<token>", that counts it.

    The most frequent token comes first. `max_features` keeps only so many tokens of each column. Tokens that were
    not there in fitting are passed over, and null counts as a text without tokens. `tokenization_fn` takes
    a text and returns its tokens; without it, texts are split at every single space.
    """

    def __init__(
        self, columns: list[str], tokenization_fn: Tokenization | None = None, max_features: int | None = None
    ) -> None:
        self.columns = checked_columns(columns, "CountVectorizer")
        self.tokenization_fn = checked_tokenization(tokenization_fn, "CountVectorizer")
        if max_features is not None:
            max_features = whole_number(max_features, "CountVectorizer: max_features", least=1)
        self.max_features = max_features

    def _statistics(self) -> list[Statistic]:
        return [TokenCounts(column, self.tokenization_fn) for column in self.columns]

    def _learn(self, values: dict[Statistic, Any]) -> None:
        learnt = {}
        for statistic in self._statistics():
            column, table = statistic.column, values[statistic]
            if table.missing:
                raise DataError(
                    f"CountVectorizer: column {column!r} has {table.missing:,} missing texts. Fill them first, for "
                    f'example by SimpleImputer([{column!r}], strategy="constant", fill_value="").'
                )
            learnt[f"token_counts({column})"] = table.most_frequent(self.max_features)
        check_unique(self._names(learnt), "CountVectorizer")
        self.stats_ = learnt

    def _names(self, learnt: dict[str, dict[str, int]]) -> list[str]:
        """The names of the new columns."""
        return [f"{column}_{token}" for column in self.columns for token in learnt[f"token_counts({column})"]]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        added: list[pa.Array] = []
        for column in self.columns:
            tokens = tokens_of(column_of(chunk, column, "CountVectorizer"), self.tokenization_fn, column)
            vocabulary = pa.array(list(self.stats_[f"token_counts({column})"]), tokens.type.value_type)
            present, places = place_numbers(pc.index_in(pc.list_flatten(tokens), value_set=vocabulary))
            rows = pc.list_parent_indices(tokens).to_numpy()[present]
            added += counts_per_row(chunk.num_rows, rows, places, len(vocabulary))
        return expanded(chunk, self.columns, self._names(self.stats_), added, "CountVectorizer")

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return (*self.columns, *(self._names(self.stats_) if hasattr(self, "stats_") else ()))


class HashingVectorizer(Preprocessor):
    """Replaces a column of texts by `num_features` columns "hash_<column>_<i>" that count the tokens of hash i.

    It needs no fitting and no vocabulary; several tokens may share a column. Hashes are the same on every
    machine. Null counts as a text without tokens. `tokenization_fn` takes a text and returns its tokens;
    without it, texts are split at every single space.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int, tokenization_fn: Tokenization | None = None) -> None:
        self.columns = checked_columns(columns, "HashingVectorizer")
        self.num_features = whole_number(num_features, "HashingVectorizer: num_features", least=1)
        self.tokenization_fn = checked_tokenization(tokenization_fn, "HashingVectorizer")

    def _names(self) -> list[str]:
        return [f"hash_{column}_{index}" for column in self.columns for index in range(self.num_features)]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        added: list[pa.Array] = []
        for column in self.columns:
            tokens = tokens_of(column_of(chunk, column, "HashingVectorizer"), self.tokenization_fn, column)
            found = pc.list_flatten(tokens).dictionary_encode()  # each token is hashed only once
            hashes = [hash_place(token, self.num_features) for token in found.dictionary.to_pylist()]
            places = np.array(hashes, np.int64)[found.indices.to_numpy()]
            rows = pc.list_parent_indices(tokens).to_numpy()
            added += counts_per_row(chunk.num_rows, rows, places, self.num_features)
        return expanded(chunk, self.columns, self._names(), added, "HashingVectorizer")

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return (*self.columns, *self._names())
