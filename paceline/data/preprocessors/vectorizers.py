"""Texts as tokens, tokens as counts: Tokenizer, FeatureHasher and the vectorizers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import Accumulator
from paceline.data.preprocessors.columns import (
    ColumnPreprocessor,
    ExpandingPreprocessor,
    counts_per_row,
    place_numbers,
)
from paceline.data.statistics import Statistic
from paceline.data.store import Scratch


class Tokenizer(ColumnPreprocessor):
    """Replaces each text by the list of its tokens; null stays null.

    `tokenization_fn` takes a text and returns its tokens; without it, texts are split at every single space.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], tokenization_fn: Tokenization | None = None) -> None:
        super().__init__(columns)
        self.tokenization_fn = checked_tokenization(tokenization_fn, "Tokenizer")

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        return tokens_of(values, self.tokenization_fn, column)


def checked_tokenization(function: Any, what: str) -> Tokenization | None:
    """The argument `tokenization_fn`."""
    if function is not None and not callable(function):
        raise ConfigError(f"{what}: tokenization_fn is {function!r}: give a function from a text to a list of tokens.")
    checked: Tokenization | None = function
    return checked


def hash_place(text: str, places: int) -> int:
    """One of so many places for a text; the same in every process and on every machine."""
    import xxhash

    return xxhash.xxh64_intdigest(text.encode()) % places


class FeatureHasher(ExpandingPreprocessor):
    """Replaces columns of token counts by `num_features` columns "hash_<i>": the sums of those whose names hash to i.

    Several columns may share a hash. Hashes are the same on every machine. A missing count is taken for 0.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int) -> None:
        super().__init__(columns)
        self.num_features = whole_number(num_features, "FeatureHasher: num_features", least=1)

    def _new_names(self, learnt: dict[str, Any]) -> list[str]:
        return [f"hash_{index}" for index in range(self.num_features)]

    def _new_columns(self, chunk: pa.RecordBatch) -> list[pa.Array]:
        counts = {column: self._counts(chunk, column) for column in self.columns}
        whole = all(pa.types.is_integer(values.type) for values in counts.values())
        kind = pa.int64() if whole else pa.float64()
        sums = [pa.repeat(pa.scalar(0, kind), chunk.num_rows)] * self.num_features
        for column, values in counts.items():
            place = hash_place(column, self.num_features)
            sums[place] = pc.add(sums[place], values.cast(kind))
        return sums

    def _counts(self, chunk: pa.RecordBatch, column: str) -> pa.Array:
        values = self._of(chunk, column)
        if pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
            values = values.cast(pa.int64())
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise DataError(f"FeatureHasher: column {column!r} is of type {values.type}, but must hold counts.")
        return pc.if_else(pc.is_null(values, nan_is_null=True), pa.scalar(0, values.type), values)


class CountVectorizer(ExpandingPreprocessor):
    """Replaces a column of texts by one column for each token, "<column>_<token>", that counts it.

    The most frequent token comes first. `max_features` keeps only so many tokens of each column. Tokens that were
    not there in fitting are passed over, and null counts as a text without tokens. `tokenization_fn` takes
    a text and returns its tokens; without it, texts are split at every single space.
    """

    def __init__(
        self, columns: list[str], tokenization_fn: Tokenization | None = None, max_features: int | None = None
    ) -> None:
        super().__init__(columns)
        self.tokenization_fn = checked_tokenization(tokenization_fn, "CountVectorizer")
        if max_features is not None:
            max_features = whole_number(max_features, "CountVectorizer: max_features", least=1)
        self.max_features = max_features

    def _statistic(self, column: str) -> Statistic:
        return TokenCounts(column, self.tokenization_fn)

    def _learnt(self, column: str, found: TokenTable) -> dict[str, Any]:
        if found.missing:
            raise DataError(
                f"CountVectorizer: column {column!r} has {found.missing:,} missing texts. Fill them first, for "
                f'example by SimpleImputer([{column!r}], strategy="constant", fill_value="").'
            )
        return {f"token_counts({column})": found.most_frequent(self.max_features)}

    def _new_names(self, learnt: dict[str, Any]) -> list[str]:
        return [f"{column}_{token}" for column in self.columns for token in learnt.get(f"token_counts({column})", ())]

    def _expanded(self, column: str, values: pa.Array) -> list[pa.Array]:
        tokens = tokens_of(values, self.tokenization_fn, column)
        vocabulary = pa.array(list(self.stats_[f"token_counts({column})"]), tokens.type.value_type)
        present, places = place_numbers(pc.index_in(pc.list_flatten(tokens), value_set=vocabulary))
        rows = pc.list_parent_indices(tokens).to_numpy()[present]
        return counts_per_row(len(values), rows, places, len(vocabulary))


class HashingVectorizer(ExpandingPreprocessor):
    """Replaces a column of texts by `num_features` columns "hash_<column>_<i>" that count the tokens of hash i.

    It needs no fitting and no vocabulary; several tokens may share a column. Hashes are the same on every
    machine. Null counts as a text without tokens. `tokenization_fn` takes a text and returns its tokens;
    without it, texts are split at every single space.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int, tokenization_fn: Tokenization | None = None) -> None:
        super().__init__(columns)
        self.num_features = whole_number(num_features, "HashingVectorizer: num_features", least=1)
        self.tokenization_fn = checked_tokenization(tokenization_fn, "HashingVectorizer")

    def _new_names(self, learnt: dict[str, Any]) -> list[str]:
        return [f"hash_{column}_{index}" for column in self.columns for index in range(self.num_features)]

    def _expanded(self, column: str, values: pa.Array) -> list[pa.Array]:
        tokens = tokens_of(values, self.tokenization_fn, column)
        found = pc.list_flatten(tokens).dictionary_encode()  # each token is hashed only once
        hashes = [hash_place(token, self.num_features) for token in found.dictionary.to_pylist()]
        places = np.array(hashes, np.int64)[found.indices.to_numpy()]
        rows = pc.list_parent_indices(tokens).to_numpy()
        return counts_per_row(len(values), rows, places, self.num_features)


Tokenization: TypeAlias = Callable[[str], Iterable[str]]

_one_at_a_time = threading.Lock()
"""Blocks are counted by several threads, which a tokenizer of the user's need not bear."""


@dataclass(frozen=True)
class TokenTable:
    """What TokenCounts gives."""

    counts: dict[str, int]
    """How often each token occurs, in the order in which tokens come first in the data."""
    missing: int
    """How many texts were null."""

    def most_frequent(self, most: int | None) -> dict[str, int]:
        """So many tokens that occur most often (None: all), the most frequent first; of equals, the earlier one."""
        return dict(Counter(self.counts).most_common(most))


@dataclass(frozen=True)
class TokenCounts(Statistic):
    """The tokens of a column of texts, as a TokenTable."""

    tokenization_fn: Tokenization | None = None

    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        return _TokenCounts(self)

    def refuses(self, kind: pa.DataType) -> str | None:
        return None if is_text(kind) or pa.types.is_null(kind) else "text"


def is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def tokens_of(texts: pa.Array, tokenization_fn: Tokenization | None, column: str) -> pa.Array:
    """Each text as a list of tokens; null stays null. None splits at every single space."""
    if not is_text(texts.type):
        if pa.types.is_null(texts.type):
            return pa.nulls(len(texts), pa.list_(pa.string()))
        raise DataError(f"Column {column!r} is of type {texts.type}, but only text has tokens.")
    if texts.type != pa.string() and texts.type != pa.large_string():
        texts = texts.cast(pa.large_string())
    if tokenization_fn is None:
        return pc.split_pattern(texts, " ")
    lists = [None if text is None else _called(tokenization_fn, text, column) for text in texts.to_pylist()]
    return pa.array(lists, pa.list_(pa.string()))


def _called(tokenization_fn: Tokenization, text: str, column: str) -> list[str]:
    name = getattr(tokenization_fn, "__qualname__", type(tokenization_fn).__qualname__)
    try:
        tokens = tokenization_fn(text)
    except Exception as error:
        raise DataError(
            f"Column {column!r}: tokenization_fn {name} raised {type(error).__name__} for {text[:80]!r}: {error}"
        ) from error
    if not isinstance(tokens, str) and isinstance(tokens, Iterable):
        listed: list[Any] = list(tokens)
        if all(isinstance(token, str) for token in listed):
            return listed
    raise DataError(
        f"Column {column!r}: tokenization_fn {name} must return a list of strings, but returned {repr(tokens)[:80]}."
    )


class _TokenCounts(Accumulator):
    def __init__(self, statistic: TokenCounts) -> None:
        self._statistic = statistic
        self._counts: Counter[str] = Counter()
        self._missing = 0

    def add(self, values: pa.Array) -> None:
        self._missing += values.null_count
        found = pc.value_counts(pc.list_flatten(self._tokens(values)))
        for token, count in zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True):
            self._counts[token] += count

    def _tokens(self, values: pa.Array) -> pa.Array:
        wanted = self._statistic
        if wanted.tokenization_fn is None:
            return tokens_of(values, None, wanted.column)
        with _one_at_a_time:
            return tokens_of(values, wanted.tokenization_fn, wanted.column)

    def merge(self, other: Self) -> None:
        self._counts.update(other._counts)
        self._missing += other._missing

    def result(self) -> TokenTable:
        return TokenTable(dict(self._counts), self._missing)
