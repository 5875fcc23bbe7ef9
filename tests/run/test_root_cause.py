"""Which failure came first, and the screen the user reads."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.air.errors import AttemptFailure, FailureKind, WorkerDiedError, WorkerFailure
from paceline.run.backend import Backend
from paceline.run.root_cause import attempt_failure, describe, startup_failure, with_lost_nodes
from paceline.train.horovod.backend import HorovodBackend
from paceline.train.tensorflow.backend import TensorflowBackend
from paceline.train.torch.backend import TorchBackend


class AnyBackend(Backend):
    """Knows what all of these say of a peer that is gone."""

    collateral_phrases = (
        *TorchBackend.collateral_phrases,
        *TensorflowBackend.collateral_phrases,
        *HorovodBackend.collateral_phrases,
    )


def died(rank: int, number: int, time_ns: int) -> WorkerFailure:
    return WorkerFailure(rank=rank, kind="signal", message="", time_ns=time_ns, signal=number)


def ended(rank: int, time_ns: int) -> WorkerFailure:
    return WorkerFailure(rank=rank, kind="premature_exit", message="", time_ns=time_ns, exit_code=0)


def graph_execution_error(rank: int, time_ns: int) -> WorkerFailure:
    """As TensorFlow words what happens inside of a tf.function."""
    traceback = """Traceback (most recent call last):
  File "train.py", line 3, in train_func
    model.fit(rows)
tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
Collective ops is aborted by: Socket closed
"""
    message = "UnavailableError: Graph execution error:"
    return WorkerFailure(rank=rank, kind="exception", message=message, time_ns=time_ns, traceback=traceback)


def failure(rank: int, message: str = "it broke", time_ns: int = 0, kind: FailureKind = "exception") -> WorkerFailure:
    return WorkerFailure(rank=rank, kind=kind, message=message, time_ns=time_ns)


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([failure(0, time_ns=20), failure(1, time_ns=10)], 1),
        ([failure(1, time_ns=10), failure(0, time_ns=10)], 0),
        # an echo of a peer's death ranks last, even if it was stamped first
        ([failure(0, "Connection reset by peer", 5), failure(1, "out of data", 10)], 1),
        ([failure(0, "[gloo/transport/tcp/pair.cc] read", 5), failure(1, "", 10, "signal")], 1),
        # all of them echoes: then the first of them
        ([failure(0, "Broken pipe", 9), failure(1, "Connection refused", 8)], 1),
        # what TensorFlow and Horovod say of a peer that is gone
        ([failure(0, "UnavailableError: {{node}} Collective ops is aborted by: unhealthy", 5), ended(1, 10)], 1),
        ([failure(0, "UnavailableError: failed to connect to all addresses; last error", 5), ended(1, 10)], 1),
        ([failure(0, "HorovodInternalError: Horovod has been shut down. This was", 5), ended(1, 10)], 1),
        # only the first line of a text is the message; the words may be further down
        ([graph_execution_error(0, 5), ended(1, 10)], 1),
        # a library aborts its process when it finds a peer gone, and may do so before the peer's end is seen
        ([died(0, signal.SIGABRT, 5), ended(1, 10)], 1),
        ([died(0, signal.SIGABRT, 5), died(1, signal.SIGSEGV, 10)], 1),
        # but who aborts is not always an echo
        ([died(0, signal.SIGABRT, 5), failure(1, "out of data", 10)], 0),
        ([failure(0, "Connection closed by peer", 5), died(1, signal.SIGABRT, 10)], 1),
        ([died(1, signal.SIGABRT, 5), died(0, signal.SIGABRT, 10)], 1),
        # whoever was killed did not die of a peer's exception, however unfamiliar its words
        ([failure(0, "the ring is broken", 5), died(1, signal.SIGKILL, 10)], 1),
        # an unknown time comes after every known one
        ([failure(0, time_ns=0, kind="exit"), failure(1, time_ns=10)], 1),
        # a death is never an echo, whatever its text says
        ([failure(0, "killed: connection reset", 5, "signal"), failure(1, "out of data", 10)], 0),
    ],
)
def test_the_root_cause(failures: list[WorkerFailure], cause: int) -> None:
    found = attempt_failure(3, failures, AnyBackend)
    assert (found.attempt, found.root_cause.rank, found.root_cause.attempt) == (3, cause, 3)
    assert not found.root_cause.collateral
    assert [other.rank for other in found.collateral] == [each.rank for each in failures if each.rank != cause]
    assert all(other.collateral for other in found.collateral)


def test_a_framework_knows_its_own_words_only() -> None:
    failures = [failure(0, "Horovod has been shut down", 5), failure(1, "out of data", 10)]
    assert attempt_failure(0, failures, HorovodBackend).root_cause.rank == 1
    assert attempt_failure(0, failures, TorchBackend).root_cause.rank == 0


@pytest.mark.parametrize("backend", [TorchBackend, HorovodBackend])
@pytest.mark.parametrize("echo", ["[gloo/transport/tcp/pair.cc] read", "NCCL communicator was aborted on rank 0."])
def test_those_who_use_a_library_know_its_words(backend: type[Backend], echo: str) -> None:
    failures = [failure(0, echo, 5), failure(1, "out of data", 10)]
    assert attempt_failure(0, failures, backend).root_cause.rank == 1


def test_the_users_own_lines_make_no_echo() -> None:
    code = """Traceback (most recent call last):
  File "train.py", line 3, in train_func
    assert answer, "connection reset"  # broken pipe
AssertionError
"""
    own = WorkerFailure(rank=1, kind="exception", message="AssertionError", time_ns=5, traceback=code)
    assert attempt_failure(0, [failure(0, time_ns=10), own]).root_cause.rank == 1


def wrapped(rank: int, time_ns: int, came_from: str) -> WorkerFailure:
    """A RuntimeError that was raised because of another exception."""
    traceback = f"""Traceback (most recent call last):
  File "train.py", line 3, in train_func
    query()
{came_from}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 5, in train_func
    raise RuntimeError("no rows") from error
RuntimeError: no rows
"""
    return WorkerFailure(rank, "exception", "RuntimeError: no rows", time_ns=time_ns, traceback=traceback)


@pytest.mark.parametrize(
    ("came_from", "cause"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer", 0),  # the user's database, as far as one knows
        ("BrokenPipeError: [Errno 32] Broken pipe", 0),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242", 1),
        ("tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:\n\nSocket closed", 1),
    ],
)
def test_what_an_exception_came_from_makes_it_an_echo_if_it_is_of_a_framework(came_from: str, cause: int) -> None:
    failures = [wrapped(0, 5, came_from), failure(1, "the ring is broken", 10)]
    assert attempt_failure(0, failures, AnyBackend).root_cause.rank == cause


def test_an_abort_in_horovods_init_is_explained() -> None:
    stack = """Fatal Python error: Aborted

Current thread 0x00007f1c2b7ff6c0 (most recent call first):
  File "/env/horovod/common/basics.py", line 71 in init
  File "/home/me/train.py", line 7 in train_func
"""
    aborted = replace(died(0, signal.SIGABRT, 5), traceback=stack)
    assert "HorovodConfig(timeout_s=...)" in attempt_failure(0, [aborted], HorovodBackend).root_cause.hint
    for other in (died(0, signal.SIGABRT, 5), replace(died(0, signal.SIGSEGV, 5), traceback=stack)):
        assert attempt_failure(0, [other], HorovodBackend).root_cause.hint == ""


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"kind": "signal", "signal": signal.SIGKILL}, "signal"),
        ({"kind": "signal", "signal": signal.SIGTERM}, "preempted"),
        ({"kind": "oom", "signal": signal.SIGKILL}, "oom"),
        ({"kind": "engine"}, "engine"),
        ({"kind": "node_lost"}, "node_lost"),
        ({"kind": "unresponsive"}, "unresponsive"),
        ({"kind": "signal", "signal": signal.SIGSEGV}, "startup"),
        ({"kind": "signal", "signal": signal.SIGABRT}, "startup"),
        ({"kind": "exception"}, "startup"),
        ({"kind": "exit", "exit_code": 3}, "startup"),
        ({"kind": "hang"}, "startup"),
    ],
)
def test_a_start_fails_by_itself_unless_something_was_done_to_it(facts: dict[str, Any], kind: str) -> None:
    lost = WorkerFailure(rank=1, message="lost", **facts)
    assert startup_failure(WorkerDiedError("lost", lost)).kind == kind


def full(**facts: Any) -> WorkerFailure:
    return WorkerFailure(**{"rank": 1, "kind": "exception", "message": "ValueError: bad", "log_path": "l.log", **facts})


def test_one_screen() -> None:
    traceback = "\n".join(f"line {number}" for number in range(100))
    last = AttemptFailure(
        2,
        full(traceback=traceback, hint="check the data"),
        tuple(failure(rank, "Connection reset\nby peer") for rank in range(2, 12)),
    )
    earlier = [AttemptFailure(number, failure(0, f"reason {number}")) for number in range(2)]
    text = describe([*earlier, last], "all 2 retries are used up")
    assert text.startswith("Training failed: rank 1: ValueError: bad\n(attempt 3; all 2 retries are used up)")
    assert "line 99" in text
    assert "line 79" not in text  # only the end of a long traceback
    assert "Hint: check the data" in text
    assert "rank 2: Connection reset\n" in text
    assert "and 4 more" in text
    assert "attempt 1: rank 0: reason 0" in text
    assert "attempt 2: rank 0: reason 1" in text
    assert text.endswith("Full output of rank 1: l.log")
    assert len(text.splitlines()) < 45


def test_an_older_part_of_the_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank_1.log.1").write_text("before\n")
    text = describe([AttemptFailure(0, full(log_path=str(tmp_path / "rank_1.log")))], "")
    assert text.endswith(f"Earlier output: {tmp_path / 'rank_1.log.1'}")


def test_ranks_that_failed_alike_are_told_together() -> None:
    alike = [full(rank=rank) for rank in (3, 2)]
    text = describe([AttemptFailure(0, full(), (*alike, failure(0, "Connection reset")))], "")
    assert "\nThe same on ranks 2, 3\n" in text
    assert "As a consequence:\n  rank 0: Connection reset\n" in text
    assert "As a consequence" not in describe([AttemptFailure(0, full(), (full(rank=2),))], "")


def test_the_users_frames_are_shown_above_a_deep_end_in_a_library() -> None:
    users = ["Traceback (most recent call last):", '  File "train.py", line 3, in loop', "    model(batch)"]
    library = [f'  File "library.py", line {number}, in deeper' for number in range(50)]
    chained = ["ValueError: the first", "", "During handling of it another exception occurred:", ""]
    text = describe([AttemptFailure(0, full(traceback="\n".join([*chained, *users, *library, "KeyError: 1"])))], "")
    assert "model(batch)" in text
    assert "KeyError: 1" in text
    assert "the first" not in text


def test_a_single_failure_has_no_history() -> None:
    text = describe([AttemptFailure(0, full())], "max_failures is 0")
    assert "attempt" not in text
    assert "As a consequence" not in text


class GroupOnNodes:
    """Of two ranks on each node; the first node is gone."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def has_lost_node(self, rank: int) -> bool:
        self.asked.append(rank)
        return rank < 2


def test_failures_say_that_a_machine_was_lost() -> None:
    places: Any = [SimpleNamespace(node=SimpleNamespace(node_id=f"n{rank // 2}")) for rank in range(4)]
    group: Any = GroupOnNodes()
    failures = [WorkerFailure(rank, "engine", "the agent is gone") for rank in range(4)]
    kinds = [failure.kind for failure in with_lost_nodes(failures, group, places)]
    assert kinds == ["node_lost", "node_lost", "engine", "engine"]
    assert group.asked == [0, 2], "once for each node"
    raised = [WorkerFailure(1, "exception", "it broke")]
    assert with_lost_nodes(raised, group, places) == raised
    assert with_lost_nodes(failures, None, ()) == failures
