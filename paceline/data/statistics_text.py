"""Texts as lists of tokens, and which tokens a column of texts has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import DataError
from paceline.data.statistics import Accumulator, Statistic
from paceline.data.statistics_scratch import Scratch

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

    def start(self, scratch: Scratch) -> Accumulator:
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
