"""Which growth of memory is worth a warning, and which is not."""

from __future__ import annotations

import math
import re
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.air.errors import TrainingFailedError
from paceline.engine.usage import Usage
from paceline.run import memory_growth, usage_watch
from paceline.run.memory_growth import Growth, Limits, MemoryGrowth
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

MB = 1_000_000
Curve = Callable[[float], float]
"""Seconds to megabytes."""


def told(*ranks: Curve, seconds: int = 3600, every_s: float = 1.0, reports_per_s: float = 3.0) -> list[Growth]:
    """What is said of ranks whose memory has these curves."""
    growth = MemoryGrowth()
    found: list[Growth] = []
    for number in range(int(seconds / every_s)):
        now = number * every_s
        usages = {rank: of(curve(now)) for rank, curve in enumerate(ranks)}
        found += growth.sampled(now, usages, [int(now * reports_per_s)] * len(ranks))
    return found


def of(megabytes: float, files: float = 0.0) -> Usage:
    return Usage(0.0, int((megabytes + files) * MB), int(megabytes * MB), private_bytes=int(megabytes * MB))


def steady(_seconds: float) -> float:
    return 110.0


def leak(seconds: float) -> float:
    return 110 + 25 * seconds


def test_a_rank_that_grows_while_the_others_do_not_is_named_soon() -> None:
    (found,) = told(steady, leak, steady, seconds=40)
    text = found.in_words
    assert text.startswith("The memory of rank 1 grows steadily: from 110 MB to ")
    assert re.search(r" over \d\d reports\.", text)
    assert "The other ranks have grown by 0 bytes." in text
    assert 'See "A run whose memory grows" in docs/debugging.md.' in text


def test_a_slow_leak_is_found_too_and_told_again_when_it_has_doubled() -> None:
    found = told(steady, lambda seconds: 400 + seconds / 10, seconds=40_000, every_s=10)
    assert [each.rank for each in found] == [1, 1, 1]
    assert found[1].now >= 2 * found[0].now
    assert found[2].now >= 2 * found[1].now


def test_an_allocator_that_gives_something_back_now_and_then_does_not_hide_it() -> None:
    def uneven(seconds: float) -> float:
        return leak(seconds) - (30 if seconds % 7 == 0 else 0)

    assert told(steady, uneven, seconds=60)


def test_all_ranks_grow_or_the_only_one_does() -> None:
    for ranks in ([leak], [leak, leak, lambda seconds: leak(seconds) + 50]):
        (found, *_) = told(*ranks, seconds=520)
        assert found.rank == 0
        assert "a cache or a buffer" in found.in_words
        assert not told(*ranks, seconds=300), "it takes longer until that is said"


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param(lambda seconds: min(110 + 100 * seconds, 1500), id="warms up"),
        pytest.param(lambda seconds: 110 + 5000 * (1 - math.exp(-seconds / 10)), id="fills a cache, with fewer misses"),
        pytest.param(lambda seconds: 110 + 50 * 2 ** int(math.log2(seconds + 1)), id="a list that doubles"),
        pytest.param(lambda seconds: 110 + (900 if seconds % 60 > 50 else 0), id="evaluates"),
        pytest.param(lambda seconds: 110 + 20 * (seconds % 25), id="epochs"),
        pytest.param(lambda seconds: 110 + 400 * (int(seconds) // 600), id="a larger model every ten minutes"),
        pytest.param(lambda seconds: 110 + 0.02 * seconds, id="not worth a word"),
        pytest.param(lambda seconds: 4000 + 50 * math.sin(seconds), id="noise"),
    ],
)
def test_what_training_does_anyway_is_no_reason_to_warn(curve: Curve) -> None:
    assert told(steady, curve) == []
    assert told(curve) == []
    assert told(curve, curve) == []


def test_buffers_of_all_ranks_that_fill_within_minutes_are_no_reason_to_warn() -> None:
    def buffer(seconds: float) -> float:
        return 200 + min(10 * seconds, 2000)

    assert told(buffer, buffer, buffer) == []


def test_ranks_that_grow_alike_do_not_blame_each_other() -> None:
    assert told(leak, lambda seconds: 110 + 15 * seconds, seconds=120) == []


def test_without_reports_nothing_is_said() -> None:
    """The data is being prepared, or a model is loaded."""
    assert told(steady, leak, seconds=120, reports_per_s=0.0) == []
    assert told(steady, leak, seconds=120, reports_per_s=0.05) == []


def test_pages_of_mapped_files_do_not_count() -> None:
    growth = MemoryGrowth()
    for second in range(600):
        usages = {0: of(110), 1: of(110, files=25 * second)}
        assert growth.sampled(float(second), usages, [3 * second] * 2) == []


def test_a_rank_that_ran_out_of_memory() -> None:
    def after(ranks: Sequence[Curve]) -> MemoryGrowth:
        growth = MemoryGrowth()
        for second in range(13):
            usages = {rank: of(curve(second)) for rank, curve in enumerate(ranks)}
            growth.sampled(float(second), usages, [3 * second] * len(ranks))
        return growth

    grown = after([steady, leak]).of_failed(1)
    assert grown is not None
    assert grown.as_cause.startswith(
        "Rank 1 grew from 110 MB to 410 MB over 36 reports, the other ranks by 0 bytes: it seems to keep something"
    )
    assert after([leak]).of_failed(0) is not None
    assert after([steady, leak]).of_failed(0) is None
    assert after([steady, lambda seconds: 110 if seconds < 12 else 3000]).of_failed(1) is None, "one large allocation"
    assert MemoryGrowth().of_failed(0) is None


def leaking(config: dict[str, Any]) -> None:
    kept = []
    is_leaky = train.get_context().get_world_rank() == 1
    for step in range(60):
        if is_leaky:
            kept.append(bytearray(4 * MB))
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            sum(range(100))
        train.report({"step": step})
    if is_leaky:
        if config["raises"]:
            raise MemoryError("more than I allow")
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        kept.append(bytearray(2**30))


@pytest.mark.parametrize("raises", [False, True])
def test_a_real_leak_is_announced_and_explains_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    monkeypatch.setattr(usage_watch, "SAMPLE_S", 0.05)
    monkeypatch.setattr(memory_growth, "OF_ONE", Limits(0.3, 10, 40 * MB, 0.2))
    monkeypatch.setattr(memory_growth, "OF_FAILED", Limits(0.3, 10, 40 * MB, 0.2))
    trainer = DataParallelTrainer(
        leaking,
        train_loop_config={"raises": raises},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    result = caught.value.result
    assert result is not None
    assert any(text.startswith("The memory of rank 1 grows steadily: from ") for text in result.warnings)
    hint = caught.value.root_cause.hint if caught.value.root_cause is not None else ""
    if raises:  # It need not have run out of memory: only the user knows.
        assert hint == ""
    else:
        assert hint.startswith("The process ran out of memory: its address space is limited to 1.0 GB")
        assert "Rank 1 grew from " in hint
        assert "smaller batch" not in hint
