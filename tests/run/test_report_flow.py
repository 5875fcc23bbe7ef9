"""From the ranks' messages to rows, commits and answers, with a real journal and no workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, RunConfig
from paceline.air.attachment import Attachment
from paceline.run.alignment import Alignment
from paceline.run.answers import Answers
from paceline.run.callbacks import Callback
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.decisions import CONTINUE, AllDeciders, Decider, Decision, StopperDecider, Wait
from paceline.run.history import RowFiller
from paceline.run.messages import Acknowledged, Answer, CheckpointReady, Finished, Hold, Report, StagedCheckpoint
from paceline.run.observers import Observers
from paceline.run.rank_target import packed_in_memory
from paceline.run.records import AttemptStarted
from paceline.run.report_flow import AttemptProblem, ReportFlow
from paceline.run.spec import Trial, TrialIdentity
from paceline.run.stoppers import DictStopper
from paceline.storage.journal import Journal, read
from paceline.storage.run_dir import RunDir
from tests.run.fake_channel import session_setup
from tests.run.fake_channel import stager as make_stager

ATTEMPT = AttemptStarted(attempt=0, hostname="host", node_ip="10.0.0.1", pid=1)


class Bench:
    """The driver's half of report() on a bench: messages in by hand, answers out to look at."""

    def __init__(
        self,
        directory: Path,
        world_size: int = 2,
        checkpoints: Any = None,
        decider: Decider | None = None,
        **run_config: Any,
    ) -> None:
        self.run_dir = RunDir(directory)
        self.run_dir.create()
        self.journal = Journal(self.run_dir.journal)
        self.config = CheckpointConfig(**(checkpoints or {}))
        self.keeper = CheckpointKeeper(self.config, self.run_dir, self.journal)
        trial = Trial("4913f_00000", "Trainer", str(directory), "4913f")
        self.observers = Observers(RunConfig(verbose=0, **run_config), trial, self.run_dir)
        self.observers.started([], world_size, {}, continues=False)
        filler = RowFiller(TrialIdentity("4913f_00000", "4913f"), {}, ATTEMPT)
        alignment, decider = Alignment(world_size, start_index=0), decider or AllDeciders()
        self.flow = ReportFlow(alignment, filler, self.journal, self.keeper, self.observers, decider)

    def report(self, rank: int, index: int, attachments: tuple[Attachment, ...] = (), **facts: Any) -> None:
        metrics = facts.pop("metrics", {"n": index})
        self.flow.received(rank, Report(index, metrics, stamp=0.0, elapsed=float(index), **facts), attachments)

    def staged(self, number: int, rank: int = 0, **data: Any) -> StagedCheckpoint:
        """What a worker has on disk when it reports a checkpoint."""
        setup = session_setup(self.run_dir.root, next_number=number, world_rank=rank, keep_all_ranks=True)
        stager = make_stager(setup)
        path = Checkpoint.from_dict(data or {"number": number}).to_directory(self.run_dir.root / f"scratch-{rank}")
        staged, _, _ = stager.stage(Checkpoint.from_directory(path), number + 1, {}, lambda: None)
        for file in Path(path).iterdir():
            file.unlink()
        Path(path).rmdir()
        assert staged is not None
        return staged

    def answers(self) -> list[tuple[int, Any]]:
        """What is to be sent once what the background does is done."""
        self.keeper.wait_for_commits()
        self.flow.conclude_commits()
        self.flow.find_mismatch()
        return [(rank, message) for rank, message, _ in self.flow.answers()]

    def problem(self) -> str:
        return self.flow.problem.message if self.flow.problem else ""

    def rows(self) -> list[dict[str, Any]]:
        return [record for record in read(self.journal.path) if record["kind"] == "row"]

    def close(self) -> None:
        self.observers.close()
        self.keeper.close()
        self.journal.close()


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Any]:
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(tmp_path / f"trial{len(made)}", **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def test_rows_that_nobody_waits_for_get_no_answer(benches: Any) -> None:
    bench = benches()
    for index in (1, 2):
        bench.report(0, index)
        bench.report(1, index)
    assert bench.answers() == []
    assert [(row["index"], row["rank"]) for row in bench.rows()] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_rows_are_in_the_file_before_anybody_is_told(benches: Any) -> None:
    bench = benches()
    for index in range(1, 251):
        bench.report(0, index)
    assert bench.answers() == [(0, Acknowledged(250))]
    assert len(bench.rows()) == 250


def test_the_decision_needs_rank_zero_alone(benches: Any) -> None:
    bench = benches(decider=StopperDecider(DictStopper({"n": 3}), "4913f_00000"))
    bench.report(1, 1, waits=True)
    assert bench.answers() == []  # rank 0 has not said what its row is
    bench.report(0, 1, waits=True)
    assert sorted(bench.answers()) == [(0, Answer(1)), (1, Answer(1))]
    bench.report(0, 2, waits=True)
    assert bench.answers() == [(0, Answer(2))]  # without waiting for rank 1
    bench.report(0, 3, waits=True)
    assert bench.answers() == [(0, Answer(3, stop=True))]
    for index, stop in ((2, False), (3, True)):
        bench.report(1, index, waits=True)
        assert bench.answers() == [(1, Answer(index, stop=stop))]
    assert bench.flow.to_ranks.stop_index == 3


def test_a_hold_stops_everybody_at_the_first_report_that_nobody_has_passed(benches: Any) -> None:
    bench = benches(world_size=3)
    for rank, last in enumerate((4, 2, 3)):
        for index in range(1, last + 1):
            bench.report(rank, index)
    bench.flow.to_ranks.hold()
    assert bench.answers() == [(rank, Hold()) for rank in range(3)]
    bench.report(0, 5, waits=True)
    assert bench.answers() == []
    for index in (3, 4):
        bench.report(1, index, waits=True)
        assert bench.answers() == [(1, Answer(index))]  # rank 0 has passed it already
    bench.report(1, 5, waits=True)
    bench.report(2, 4, waits=True)
    assert bench.answers() == [(2, Answer(4))]
    bench.report(2, 5, waits=True)
    assert sorted(bench.answers()) == [(rank, Answer(5, stop=True)) for rank in range(3)]


def test_a_rank_that_is_ahead_of_the_last_report_stops_where_it_waits(benches: Any) -> None:
    bench = benches(decider=StopperDecider(DictStopper({"n": 2}), "4913f_00000"))
    for index in (1, 2, 3):
        bench.report(1, index)
    bench.report(1, 4, waits=True)
    bench.report(0, 1, waits=True)
    assert bench.answers() == [(0, Answer(1))]
    bench.report(0, 2, waits=True)
    assert sorted(bench.answers()) == [(0, Answer(2, stop=True)), (1, Answer(4, stop=True))]


def test_reduced_values_go_to_every_rank_at_once(benches: Any) -> None:
    bench = benches()
    asked: dict[str, Any] = {"waits": True, "reduce": {"x": "mean"}}
    bench.report(0, 1, metrics={"x": 1, "y": 7}, **asked)
    assert bench.answers() == []
    bench.report(1, 1, metrics={"x": 4}, **asked)
    assert sorted(bench.answers(), key=lambda each: each[0]) == [
        (rank, Answer(1, reduced={"x": 2.5})) for rank in (0, 1)
    ]
    assert bench.observers.last_row is not None
    assert (bench.observers.last_row["x"], bench.observers.last_row["y"]) == (2.5, 7)
    assert bench.flow.alignment.metrics == {0: {"x": 1, "y": 7}, 1: {"x": 4}}


def test_ranks_that_ask_for_different_reductions(benches: Any) -> None:
    bench = benches()
    bench.report(0, 1, metrics={"x": 1}, waits=True, reduce={"x": "mean"})
    bench.report(1, 1, metrics={"x": 1}, waits=True, reduce={"x": "sum"})
    assert bench.flow.problem is not None
    assert "rank 1" in bench.flow.problem.message


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_finishes_early_is_the_problem(benches: Any, rank: int) -> None:
    bench = benches()
    for index in (1, 2):
        bench.report(1 - rank, index)
    bench.report(rank, 1)
    bench.answers()
    assert bench.problem() == ""
    bench.flow.received(rank, Finished(1), ())
    bench.answers()
    assert "unequally often" in bench.problem()
    assert bench.flow.problem is not None
    assert (bench.flow.problem.kind, bench.flow.problem.rank) == ("report_mismatch", rank)
    bench.report(1 - rank, 3)  # what arrives after that counts for nothing
    assert bench.flow.alignment.last_index[1 - rank] == 2


def test_a_checkpoint_is_committed_before_its_report_is_answered(benches: Any) -> None:
    seen: list[Any] = []

    class Watching(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            seen.append(iteration)

        def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
            seen.append(checkpoint.number)

    bench = benches(callbacks=[Watching()])
    bench.report(0, 1, waits=True, checkpoint=bench.staged(0))
    assert bench.answers() == [(0, Answer(1))]
    assert seen == [1, 0]
    assert [number for number, _ in bench.run_dir.checkpoints()] == [0]
    kinds = [record["kind"] for record in read(bench.journal.path)]
    assert kinds == ["row", "checkpoint"]


def test_a_checkpoint_that_cannot_be_committed_is_the_problem_and_its_row_is_shown(benches: Any) -> None:
    bench = benches()
    staged = bench.staged(0)
    bench.run_dir.checkpoint(0).mkdir()
    (bench.run_dir.checkpoint(0) / "in the way").touch()
    bench.report(0, 1, waits=True, checkpoint=staged)
    assert bench.answers() == []
    assert bench.flow.problem is not None
    assert bench.flow.problem.kind == "storage"
    bench.flow.settle()
    assert bench.observers.last_row is not None
    assert bench.observers.last_row["n"] == 1


def test_background_checkpoints_are_committed_when_they_are_ready(benches: Any) -> None:
    bench = benches()
    for index in (1, 2):
        bench.report(0, index, checkpoint_follows=True)
    assert bench.answers() == []
    bench.flow.received(0, CheckpointReady(1, bench.staged(0)), ())
    assert bench.answers() == [(rank, Acknowledged([2, 0][rank], checkpoints=1)) for rank in (0, 1)]
    assert [(kept.number, kept.iteration, kept.row["n"]) for kept in bench.keeper.committed] == [(0, 1, 1)]


@pytest.mark.parametrize("reduce", [None, {"n": "max"}])
def test_background_checkpoints_of_all_ranks_are_merged(benches: Any, reduce: dict[str, str] | None) -> None:
    bench = benches(checkpoints={"async_save": True, "keep_all_ranks": True})
    for rank in (0, 1):
        bench.report(rank, 1, checkpoint_follows=True, of_all_ranks=True, reduce=reduce, waits=reduce is not None)
    for rank in (1, 0):
        assert bench.keeper.committed == []
        bench.flow.received(rank, CheckpointReady(1, bench.staged(0, rank, same="content")), ())
        bench.answers()
    assert bench.problem() == ""
    assert [kept.number for kept in bench.keeper.committed] == [0]
    bench.report(0, 2, checkpoint_follows=True, of_all_ranks=True)
    bench.report(1, 2)
    bench.answers()
    assert re.search(r"rank 1\b.*report 2\b", bench.problem())


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("reduce", [None, {"n": "max"}])
def test_a_checkpoint_in_memory_reaches_the_other_ranks_once(
    benches: Any, reduce: dict[str, str] | None, last: int
) -> None:
    bench = benches(checkpoints={"num_to_keep": 0})
    for index in (1, 2):
        files = {0: (packed_in_memory(Checkpoint.from_dict({"n": index})),), 1: ()}
        staged = {0: StagedCheckpoint(b"", index - 1, 10), 1: None}
        for rank in (1 - last, last):
            bench.report(rank, index, files[rank], checkpoint=staged[rank], waits=True, reduce=reduce)
        bench.flow.conclude_commits()
        attached = {rank: attachments for rank, _, attachments in bench.flow.answers()}
        assert attached == {0: (), 1: (bench.keeper.newest_in_memory,)}
        found = bench.keeper.newest_checkpoint()
        assert found is not None
        assert found.to_dict()["n"] == index
    bench.report(0, 3, waits=True)
    bench.report(1, 3, waits=True)
    assert [attachments for _, _, attachments in bench.flow.answers()] == [(), ()]


def test_a_checkpoint_in_memory_counts_though_the_attempt_fails_before_it_is_answered(benches: Any) -> None:
    bench = benches(checkpoints={"num_to_keep": 0})
    for index in (1, 2):
        packed = packed_in_memory(Checkpoint.from_dict({"n": index}))
        bench.report(0, index, (packed,), checkpoint=StagedCheckpoint(b"", index - 1, packed.size), waits=True)
        if index == 1:
            bench.report(1, index, waits=True)
            bench.answers()
    bench.flow.problem = AttemptProblem("exception", 1, "said by rank 1 at the same time")
    bench.flow.conclude_commits()
    bench.flow.settle()
    bench.keeper.settle()
    assert bench.keeper.newest is not None
    assert bench.keeper.newest.number == 1


class Undecided(Decider):
    """Puts off the answer to the second row."""

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> Decision:
        return Wait() if index == 2 else CONTINUE


def waiting_at_two(bench: Bench) -> None:
    """Both ranks have reported twice; the second row is not answered."""
    for index in (1, 2):
        for rank in (0, 1):
            bench.report(rank, index, waits=True)
        expected = [(0, Answer(1, False, None)), (1, Answer(1, False, None))] if index == 1 else []
        assert bench.answers() == expected


def test_a_row_whose_answer_is_put_off_holds_every_rank(benches: Any) -> None:
    bench = benches(decider=Undecided())
    waiting_at_two(bench)
    assert bench.flow.excused_ranks() == {0, 1}
    bench.flow.to_ranks.release(stop=False)
    assert bench.answers() == [(0, Answer(2, False, None)), (1, Answer(2, False, None))]
    assert bench.flow.to_ranks.stop_index is None
    bench.flow.to_ranks.release(stop=True)  # nothing waits any more
    assert bench.flow.to_ranks.stop_index is None


def test_a_row_whose_answer_was_put_off_can_be_the_last(benches: Any) -> None:
    bench = benches(decider=Undecided())
    waiting_at_two(bench)
    assert isinstance(bench.flow.take_decision(), Wait)
    bench.flow.to_ranks.release(stop=True)
    assert bench.answers() == [(0, Answer(2, True, None)), (1, Answer(2, True, None))]
    assert bench.flow.to_ranks.stop_index == 2


def test_reduced_values_come_with_the_late_answer(benches: Any) -> None:
    bench = benches(decider=Undecided())
    for index in (1, 2):
        for rank in (0, 1):
            bench.report(rank, index, waits=True, metrics={"n": rank}, reduce={"n": "sum"})
    bench.answers()
    bench.flow.to_ranks.release(stop=False)
    assert bench.answers() == [(0, Answer(2, False, {"n": 1})), (1, Answer(2, False, {"n": 1}))]


def test_reports_are_free_again_when_the_workers_are_wanted_after_all() -> None:
    answers = Answers(Alignment(2, 0), None)
    answers.replace_at_checkpoint(lambda: False)
    assert answers.take(None, None) == [(0, Hold(on=True), ()), (1, Hold(on=True), ())]
    answers.has_checkpoint()
    assert answers.take(None, None) == [(0, Hold(on=False), ()), (1, Hold(on=False), ())]
    answers.replace_at_checkpoint(lambda: True)
    assert answers.take(None, None) == [(0, Hold(on=True), ()), (1, Hold(on=True), ())]
