"""Which checkpoints are best, and which stay: pure ranking, no files touched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.air.config import CheckpointConfig
from paceline.air.errors import CheckpointCorruptError
from paceline.air.manifest import read_manifest
from paceline.air.metrics import nested_get
from paceline.air.validation import with_validation
from paceline.run.records import (
    CheckpointCommitted,
    CheckpointRetired,
    Record,
    Validated,
    ValidationFailed,
    ValidationRequested,
)


@dataclass(frozen=True)
class KeptCheckpoint:
    """A committed checkpoint and what it is ranked by."""

    number: int
    iteration: int
    score: float | None
    """The score attribute's value in the checkpoint's own dict."""
    row: Mapping[str, Any]
    """The row it was reported with; with the metrics of its validation, once they are there."""
    size: int = 0
    data: Mapping[str, Any] | None = None
    """Where the ranks were in their datasets; known here only for one that is in memory."""

    def validated(self, metrics: Mapping[str, Any]) -> KeptCheckpoint:
        """The same with the metrics of its validation."""
        return replace(self, row=with_validation(self.row, metrics))


def ranked(config: CheckpointConfig, kept: Sequence[KeptCheckpoint]) -> list[KeptCheckpoint]:
    """From worst to best. A missing or NaN score is worst whichever way scores go; among equals the
    checkpoint's own dict decides, then the newer one wins."""
    return sorted(kept, key=lambda each: _rank_key(config, each))


def best(config: CheckpointConfig, kept: Sequence[KeptCheckpoint]) -> list[KeptCheckpoint]:
    """The best `num_to_keep` ones, from worst to best; all of them without a limit."""
    order = ranked(config, kept)
    return order[-config.num_to_keep :] if config.num_to_keep else order


def lacks_score(config: CheckpointConfig, kept: KeptCheckpoint) -> bool:
    """True if the checkpoint has nothing to be ranked by."""
    attribute = config.checkpoint_score_attribute
    return attribute is not None and nested_get(kept.row, attribute) is None and kept.score is None


def _rank_key(config: CheckpointConfig, kept: KeptCheckpoint) -> tuple[float, ...]:
    attribute = config.checkpoint_score_attribute
    if not attribute:
        return (float(kept.number),)
    sign = 1.0 if config.checkpoint_score_order == "max" else -1.0
    first = score_of(config, kept.row, kept.score)
    return (*_comparable(first, sign), *_comparable(kept.score, sign), float(kept.number))


def score_of(config: CheckpointConfig, row: Mapping[str, Any], own: float | None) -> Any:
    """What a checkpoint is ranked by first: what was reported with it, else what its `own` dict says."""
    attribute = config.checkpoint_score_attribute
    reported = nested_get(row, attribute) if attribute else None
    return reported if reported is not None else own


def _comparable(value: Any, sign: float) -> tuple[float, float]:
    """(is it a score at all, the score)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return (0.0, 0.0)
    return (1.0, sign * value)


def deleted_numbers(records: Iterable[Record]) -> set[int]:
    """Checkpoints that the journal gave up."""
    return {number for number, record in _last_words(records).items() if isinstance(record, CheckpointRetired)}


def damaged_numbers(records: Iterable[Record]) -> set[int]:
    """Those given up because they were damaged: what is left of them stays for the user to look at."""
    words = _last_words(records).items()
    return {number for number, record in words if isinstance(record, CheckpointRetired) and record.reason is not None}


def _last_words(records: Iterable[Record]) -> dict[int, CheckpointCommitted | CheckpointRetired]:
    """By checkpoint, the record that counts: a number that goes by the iteration may be used again after a failure."""
    return {record.number: record for record in records if isinstance(record, CheckpointCommitted | CheckpointRetired)}


def listed_numbers(records: Iterable[Record]) -> set[int]:
    """Checkpoints that the journal says are there."""
    return {number for number, record in _last_words(records).items() if isinstance(record, CheckpointCommitted)}


def mentioned_numbers(records: Iterable[Record]) -> set[int]:
    """Checkpoints that are or were there."""
    return set(_last_words(records))


def still_kept(records: Iterable[Record], present: Mapping[int, Path | None]) -> list[KeptCheckpoint]:
    """What a journal lists and storage still has, oldest first.

    `present` maps numbers to local directories (None for what is only on remote storage). A
    checkpoint that was renamed just before its driver died is in no record; its own
    manifest says all that is needed.
    """
    records = list(records)
    last_words, validated = _last_words(records), validations(records)
    kept = []
    for number in sorted(present):
        record = last_words.get(number) or _record_from_manifest(number, present[number])
        if isinstance(record, CheckpointCommitted):
            found = KeptCheckpoint(number, record.iteration, record.score, record.row, record.size)
            metrics = validated.get((record.attempt, record.iteration))
            kept.append(found if metrics is None else found.validated(metrics))
    return kept


def pending_validations(records: Iterable[Record], *, failed_again: bool = False) -> dict[int, ValidationRequested]:
    """The validations that have neither succeeded nor failed, by the number of their checkpoint, which may be gone.

    With `failed_again`, those that failed are pending too.
    """
    over = (Validated,) if failed_again else (Validated, ValidationFailed)
    pending: dict[int, ValidationRequested] = {}
    for record in records:
        if isinstance(record, ValidationRequested):
            pending[record.number] = record
        elif isinstance(record, CheckpointCommitted | Validated | ValidationFailed):
            asked = pending.get(record.number)
            if asked is None:
                continue
            is_of_same = asked.attempt == record.attempt
            # A number may be used again: the checkpoint that was to be validated is not there, and this one need not be
            is_replaced = isinstance(record, CheckpointCommitted) and not is_of_same
            if is_replaced or (is_of_same and isinstance(record, over)):
                del pending[record.number]
    return pending


def validations(records: Iterable[Record]) -> dict[tuple[int, int], dict[str, Any]]:
    """The metrics of all validations, by attempt and index of the row they belong to."""
    return {(each.attempt, each.index): each.metrics for each in records if isinstance(each, Validated)}


def _record_from_manifest(number: int, path: Path | None) -> CheckpointCommitted | None:
    if path is None:
        return None
    try:
        facts = read_manifest(path).facts
    except CheckpointCorruptError:
        return None
    if "iteration" not in facts:
        return None
    return CheckpointCommitted(
        number=number,
        iteration=facts["iteration"],
        attempt=facts.get("attempt", 0),
        score=facts.get("score"),
        row=facts.get("metrics", {}),
    )
