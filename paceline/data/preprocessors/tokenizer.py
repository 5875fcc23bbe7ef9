"""Tokenizer: texts as lists of tokens."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from paceline.air.errors import ConfigError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors.columns import checked_columns, column_of, with_columns
from paceline.data.statistics_text import Tokenization, tokens_of


class Tokenizer(Preprocessor):
    """Replaces each text by the list of its tokens; null stays null.

    `tokenization_fn` takes a text and returns its tokens; without it, texts are split at every single space.
    """

    _is_fittable = False

    def __init__(self, columns: list[str], tokenization_fn: Tokenization | None = None) -> None:
        self.columns = checked_columns(columns, "Tokenizer")
        self.tokenization_fn = checked_tokenization(tokenization_fn, "Tokenizer")

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        tokens = {
            column: tokens_of(column_of(chunk, column, "Tokenizer"), self.tokenization_fn, column)
            for column in self.columns
        }
        return with_columns(chunk, tokens)

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)


def checked_tokenization(function: Any, what: str) -> Tokenization | None:
    """The argument `tokenization_fn`."""
    if function is not None and not callable(function):
        raise ConfigError(f"{what}: tokenization_fn is {function!r}: give a function from a text to a list of tokens.")
    checked: Tokenization | None = function
    return checked
