"""Whose fault it is that ranks have waited in vain."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.air.errors import WorkerFailure
from paceline.run.backend import Backend
from paceline.run.early_return import waited_in_vain
from paceline.run.positions import KnownFrames
from paceline.run.report_flow import AttemptProblem

CLOSED = "RuntimeError: Connection closed by peer"
LATE = "RuntimeError: Timed out waiting 3000ms for recv operation to complete"


def traceback(line: int, inside: str = "all_reduce") -> str:
    return f"""\
Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in train
    dist.all_reduce(x)
  File "/x/site-packages/lib/net.py", line 5, in {inside}
    work.wait()
"""


def failed(rank: int, message: str = CLOSED, inside: str = "all_reduce") -> WorkerFailure:
    return WorkerFailure(rank, "exception", message, time_ns=10 + rank, traceback=traceback(20, inside))


@dataclass
class Attempt:
    failures: list[WorkerFailure]
    running: list[int] = field(default_factory=list)
    known_frames: KnownFrames = field(default_factory=lambda: KnownFrames(["lib.net:all_reduce"]))

    def stacks(self) -> dict[int, str]:
        text = 'Current thread 0x01 (most recent call first):\n  File "/home/me/train.py", line 12 in wait_in_vain'
        return dict.fromkeys([*self.running, *(failure.rank for failure in self.failures)], text)


def found(attempt: Attempt, returned: set[int], last_index: list[int]) -> AttemptProblem | None:
    return waited_in_vain(attempt, returned, last_index, Backend)


def test_ranks_that_lost_one_that_has_returned() -> None:
    problem = found(Attempt([failed(2), failed(0)]), {1}, [7, 7, 7])
    assert problem is not None
    assert (problem.kind, problem.rank) == ("report_mismatch", 1)
    assert problem.message.startswith(
        "rank 1 returned after report 7 while rank 0 waited in all_reduce at /home/me/train.py:20. "
    )
    assert "-- rank 2 --" in problem.details


def test_of_several_that_have_returned_the_one_with_the_fewest_reports_is_named() -> None:
    problem = found(Attempt([failed(0)]), {1, 2}, [7, 8, 6])
    assert problem is not None
    assert problem.rank == 2


def test_a_rank_that_did_not_arrive_in_time() -> None:
    problem = found(Attempt([failed(0, LATE)], running=[1]), set(), [7, 6])
    assert problem is not None
    assert (problem.kind, problem.rank) == ("hang", 1)
    assert problem.message == (
        "a collective operation timed out: rank 1 is at /home/me/train.py:12, in wait_in_vain, after report 6; rank 0 "
        "waits in all_reduce at /home/me/train.py:20, after report 7"
    )


def test_errors_of_other_connections_are_the_ranks_own() -> None:
    assert found(Attempt([failed(0, inside="fetch")]), {1}, [7, 7]) is None
    assert found(Attempt([failed(0, "ValueError: no")]), {1}, [7, 7]) is None
    assert found(Attempt([failed(0), failed(2, inside="fetch")]), {1}, [7, 7, 7]) is None


def test_without_a_rank_that_has_returned_the_cause_is_another_failure() -> None:
    assert found(Attempt([failed(0)], running=[1]), set(), [7, 7]) is None
    assert found(Attempt([]), {0, 1}, [7, 7]) is None


def test_errors_of_collective_operations_show_that_a_rank_has_waited_where_its_stack_does_not() -> None:
    """As in frameworks whose computations have no Python frames."""

    class Compiled(Backend):
        collective_errors = ("gloo all-reduce failed",)

    said = failed(0, "ValueError: Gloo all-reduce failed: Connection closed by peer", inside="run_compiled")
    assert waited_in_vain(Attempt([said]), {1}, [7, 6], Backend) is None
    problem = waited_in_vain(Attempt([said]), {1}, [7, 6], Compiled)
    assert problem is not None
    assert (problem.kind, problem.rank) == ("report_mismatch", 1)
    assert problem.message.startswith(
        "rank 1 returned after report 6 while rank 0 waited for it at /home/me/train.py:20. "
    )
