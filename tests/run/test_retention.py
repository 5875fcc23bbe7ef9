"""Which checkpoints are best, and which of a journal are still there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from paceline.air import CheckpointConfig
from paceline.run.records import (
    CheckpointCommitted,
    CheckpointRetired,
    Validated,
    ValidationFailed,
    ValidationRequested,
)
from paceline.run.retention import KeptCheckpoint, best, lacks_score, pending_validations, ranked, still_kept

NAN, INF = math.nan, math.inf


def kept(scores: list[Any], own: Mapping[int, float] | None = None) -> list[KeptCheckpoint]:
    """Checkpoints whose rows have these losses (absent where None) and whose dicts have `own`."""
    return [
        KeptCheckpoint(number, number + 1, (own or {}).get(number), {} if score is None else {"loss": score})
        for number, score in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("order", "scores", "own", "expected"),
    [
        ("max", [1, 3, 2], {}, [0, 2, 1]),
        ("min", [1, 3, 2], {}, [1, 2, 0]),
        # what is no score ranks worst, whichever way scores go
        ("max", [1, NAN, None, -INF], {}, [1, 2, 3, 0]),
        ("min", [1, NAN, None, INF], {}, [1, 2, 3, 0]),
        ("max", [True, 0.5], {}, [0, 1]),
        ("min", ["text", 7], {}, [0, 1]),
        # equal rows: the checkpoint's own dict decides, then the newer one wins
        ("min", [2, 2, 2, 2], {0: 2, 1: 4, 2: 1, 3: 3}, [1, 3, 0, 2]),
        ("max", [2, 2, 2], {}, [0, 1, 2]),
        ("min", [2, 2, 2], {}, [0, 1, 2]),
        # no row has it: the dict's value stands in
        ("max", [None, None, 5], {0: 9, 1: 1}, [1, 2, 0]),
    ],
)
def test_ranking(order: Literal["max", "min"], scores: list[Any], own: dict[int, float], expected: list[int]) -> None:
    config = CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order=order)
    assert [each.number for each in ranked(config, kept(scores, own))] == expected


def test_without_a_score_the_newest_is_best() -> None:
    assert [each.number for each in ranked(CheckpointConfig(), kept([3, 1, 2]))] == [0, 1, 2]


@pytest.mark.parametrize(("keep", "expected"), [(None, [1, 2, 0]), (2, [2, 0]), (1, [0]), (9, [1, 2, 0])])
def test_best_ones(keep: int | None, expected: list[int]) -> None:
    config = CheckpointConfig(num_to_keep=keep, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    assert [each.number for each in best(config, kept([1, 3, 2]))] == expected


def test_nested_score() -> None:
    config = CheckpointConfig(checkpoint_score_attribute="eval/loss")
    rows: list[dict[str, Any]] = [{"eval": {"loss": 2}}, {"eval/loss": 3}, {"eval": 5}]
    checkpoints = [KeptCheckpoint(number, number + 1, None, row) for number, row in enumerate(rows)]
    assert [each.number for each in ranked(config, checkpoints)] == [2, 0, 1]


def test_lacking_a_score() -> None:
    config = CheckpointConfig(checkpoint_score_attribute="loss")
    with_row, with_own, without = kept([1, None, None], {1: 4.0})
    assert [lacks_score(config, each) for each in (with_row, with_own, without)] == [False, False, True]
    assert not lacks_score(CheckpointConfig(), without)


def committed(number: int) -> CheckpointCommitted:
    return CheckpointCommitted(number=number, iteration=number + 1, row={"n": number})


def test_what_a_journal_lists_and_storage_still_has() -> None:
    records = [*map(committed, range(4)), CheckpointRetired(number=1)]
    present: dict[int, Path | None] = {0: None, 1: None, 3: None}
    found = still_kept(records, present)
    assert [(each.number, each.iteration, each.row) for each in found] == [(0, 1, {"n": 0}), (3, 4, {"n": 3})]


def test_a_directory_that_no_record_names_and_that_says_nothing_itself_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text("not a manifest")
    assert still_kept([], {5: tmp_path, 6: None}) == []


def requested(number: int, attempt: int = 0) -> ValidationRequested:
    return ValidationRequested(attempt=attempt, index=number, number=number, time=0.0)


def returned(number: int, attempt: int = 0) -> Validated:
    return Validated(attempt=attempt, index=number, number=number, time=0.0, duration_s=1.0, metrics={"error": number})


def test_pending_validations() -> None:
    records = [requested(1), requested(2), requested(3), returned(2)]
    failed = ValidationFailed(attempt=0, index=3, number=3, time=0.0)
    assert list(pending_validations([*records, failed])) == [1]


def test_failed_validations_can_be_pending_again() -> None:
    records = [requested(1), requested(2), returned(2), ValidationFailed(attempt=0, index=1, number=1, time=0.0)]
    assert list(pending_validations(records, failed_again=True)) == [1]


def test_a_checkpoint_of_a_later_attempt_is_not_the_one_that_was_to_be_validated() -> None:
    def committed(attempt: int) -> CheckpointCommitted:
        return CheckpointCommitted(number=2, iteration=2, attempt=attempt, row={})

    assert list(pending_validations([requested(2), committed(0)])) == [2]
    assert not pending_validations([requested(2), committed(1)])
    assert not pending_validations([requested(2), committed(0), committed(1)])
    assert list(pending_validations([requested(2), requested(2, attempt=1), committed(1)])) == [2]


def test_a_number_that_is_used_again_is_validated_again() -> None:
    """Numbers that go by the iteration are. What comes late is about the checkpoint of the earlier attempt."""
    records = [requested(1), requested(1, attempt=1), returned(1)]
    (pending,) = pending_validations(records).values()
    assert pending.attempt == 1
    again = CheckpointCommitted(number=1, iteration=1, attempt=1, row={"loss": 2})
    assert still_kept([*records, again], {1: None})[0].row == {"loss": 2}
    (validated,) = still_kept([*records, again, returned(1, attempt=1)], {1: None})
    assert validated.row == {"loss": 2, "validation": {"error": 1}}
