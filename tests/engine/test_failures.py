from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline.engine.failures
from paceline.air.errors import DataError, MetricError, WorkerFailure
from paceline.air.metrics import plain_metrics
from paceline.engine.failures import describe_exception, describe_exit
from paceline.engine.local import linux
from paceline.engine.protocol import decode_failure, encode

GIGABYTE = 2**30


def caught(raise_it: object) -> WorkerFailure:
    """Describe what the callable raises, and send it through the wire format."""
    try:
        raise_it()  # type: ignore[operator]
    except BaseException as error:
        failure = describe_exception(error, rank=3, time_ns=17)
    arrived = decode_failure(encode(failure))
    assert arrived == failure
    return arrived


def test_an_exception_becomes_text_and_plain_arguments() -> None:
    def fail() -> None:
        raise ValueError("first line\nsecond line", 2, None)

    failure = caught(fail)
    assert (failure.rank, failure.kind, failure.time_ns) == (3, "exception", 17)
    assert failure.exception_type == "builtins.ValueError"
    assert failure.arguments == ("first line\nsecond line", 2, None)
    assert "in fail" in failure.traceback


def test_the_message_is_one_line() -> None:
    def fail() -> None:
        raise RuntimeError("first line\nsecond line")

    failure = caught(fail)
    assert failure.message == "RuntimeError: first line"
    assert "second line" in failure.traceback


@pytest.fixture(scope="module")
def xgboost() -> Any:
    """Imported before a test watches the environment: scikit-learn, which it loads, sets variables."""
    return pytest.importorskip("xgboost")


def test_of_boosting_libraries_the_users_frames_and_the_message_are_shown(xgboost: Any) -> None:
    def fail() -> None:
        xgboost.train({"objective": "no such objective"}, xgboost.DMatrix([[1.0]], label=[1.0]), 1)

    traceback = caught(fail).traceback
    assert "in fail" in traceback
    assert "no such objective" in traceback
    assert "site-packages" not in traceback
    assert "Stack trace" not in traceback


NATIVE = "bad value\nStack trace:\n  [bt] (0) lib.so(+0x1) [0x2]\n  [bt] (1) lib.so [0x3]\n\n"


def test_what_was_raised_because_of_a_native_error_is_shown() -> None:
    def fail() -> None:
        try:
            raise ValueError(NATIVE)
        except ValueError as error:
            raise RuntimeError("Stack trace:\nof another kind") from error

    traceback = caught(fail).traceback
    assert "[bt]" not in traceback
    assert "bad value" in traceback
    assert traceback.endswith("RuntimeError: Stack trace:\nof another kind\n")


def test_errors_of_ours_about_data_need_no_frames_of_ours() -> None:
    def fail_inside() -> None:
        names = {"__name__": "inside"}
        path = str(Path(paceline.engine.failures.__file__).with_name("loop.py"))
        exec(compile("def check(error): raise error", path, "exec"), names)
        names["check"](DataError("no column 'x'"))  # type: ignore[operator]

    traceback = caught(fail_inside).traceback
    assert "in fail_inside" in traceback
    assert "in check" not in traceback


def test_causes_are_part_of_the_traceback() -> None:
    def fail() -> None:
        try:
            raise KeyError("the root")
        except KeyError as error:
            raise RuntimeError("what followed") from error

    assert "the root" in caught(fail).traceback


def report_a_set() -> None:
    plain_metrics({"loss": {1, 2}})


def test_the_traceback_ends_at_the_users_line_where_a_check_of_ours_raises() -> None:
    failure = caught(report_a_set)
    assert failure.exception_type == f"{MetricError.__module__}.MetricError"
    assert 'plain_metrics({"loss": {1, 2}})' in failure.traceback
    assert "metrics.py" not in failure.traceback
    assert failure.traceback.splitlines()[-1].startswith("paceline.air.errors.MetricError: ")


def test_chained_exceptions_and_groups_lose_our_frames_too() -> None:
    def fail() -> None:
        try:
            report_a_set()
        except MetricError as error:
            raise ExceptionGroup("several", [error]) from error

    text = caught(fail).traceback
    assert text.count('plain_metrics({"loss": {1, 2}})') == 2
    assert "metrics.py" not in text


def test_a_traceback_of_our_frames_alone_stays_whole() -> None:
    with pytest.raises(MetricError) as caught_error:
        report_a_set()
    ours = caught_error.tb.tb_next.tb_next  # type: ignore[union-attr]
    failure = describe_exception(caught_error.value.with_traceback(ours), rank=0, time_ns=1)
    assert "metrics.py" in failure.traceback


def test_a_missing_file_with_a_relative_path_gets_a_hint() -> None:
    assert os.getcwd() in caught(lambda: os.stat("no_such_file")).hint
    assert "absolute path" in caught(lambda: os.stat(b"no_such_file")).hint
    assert not caught(lambda: os.stat("/no/such/file")).hint
    assert not caught(lambda: subprocess.run(["no_such_program"], check=False)).hint


def test_a_missing_file_keeps_its_name() -> None:
    failure = caught(lambda: os.stat("/no/such/file"))
    assert failure.arguments is not None
    assert str(FileNotFoundError(*failure.arguments)) == "[Errno 2] No such file or directory: '/no/such/file'"


class BrokenStrError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class BrokenArgsError(Exception):
    @property
    def args(self) -> object:  # type: ignore[override]
        return "not a tuple"


@pytest.mark.parametrize("cls", [BrokenStrError, BrokenArgsError])
def test_exceptions_that_misbehave_are_described_all_the_same(cls: type[Exception]) -> None:
    def fail() -> None:
        raise cls

    failure = caught(fail)
    assert failure.exception_type is not None
    assert failure.exception_type.endswith(cls.__name__)
    assert "in fail" in failure.traceback


@pytest.mark.parametrize(
    "argument",
    [object(), "x" * 1_000_000, b"y" * 1_000_000, 2**80, "lone \udcff surrogate", list(range(1_000_000))],
    ids=["object", "text", "bytes", "integer", "surrogate", "list"],
)
def test_arguments_that_are_not_small_and_plain_stay_behind(argument: object) -> None:
    def fail() -> None:
        raise ValueError(argument)

    failure = caught(fail)
    assert failure.arguments is None
    assert len(encode(failure)) < 400_000
    assert "in fail" in failure.traceback


@pytest.mark.parametrize(
    ("code", "kind", "number"),
    [(3, "exit", 3), (0, "premature_exit", 0), (None, "premature_exit", 0), ("no", "exit", 1)],
)
def test_sys_exit(code: object, kind: str, number: int) -> None:
    failure = caught(lambda: sys.exit(code))  # type: ignore[arg-type]
    assert (failure.kind, failure.exit_code) == (kind, number)
    assert f"sys.exit({code!r})" in failure.message


def code_of(program: str) -> int:
    """How an interpreter that runs this ends."""
    return subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode


def exit_failure(code: int, rss: int = GIGABYTE, limit: int | None = 12 * GIGABYTE, kills: int = 0) -> WorkerFailure:
    return describe_exit(
        1, code, rss, memory_limit=limit, out_of_memory_kills=kills, crash_text="", log_path="x.log", time_ns=1
    )


def test_exit_codes_and_signals_are_told_apart() -> None:
    failure = exit_failure(code_of("import os; os._exit(5)"))
    assert (failure.kind, failure.exit_code, failure.signal) == ("exit", 5, None)
    failure = exit_failure(code_of("pass"))
    assert (failure.kind, failure.exit_code) == ("premature_exit", 0)
    failure = exit_failure(code_of("import os; os.kill(os.getpid(), 11)"))
    assert (failure.kind, failure.signal) == ("signal", signal.SIGSEGV)
    assert "SIGSEGV (11)" in failure.message


def test_a_kill_near_the_memory_limit_reads_as_out_of_memory() -> None:
    code = code_of("import os; os.kill(os.getpid(), 9)")
    unexplained = exit_failure(code)
    assert unexplained.kind == "signal"
    assert "dmesg" in unexplained.hint
    near = exit_failure(code, rss=int(11.8 * GIGABYTE))
    assert near.kind == "oom"
    for fact in ("SIGKILL (9)", "11.8 GB of 12.0 GB", "out of memory"):
        assert fact in near.message
    assert near.hint
    assert exit_failure(code, kills=1, rss=2 * GIGABYTE).kind == "oom"
    assert exit_failure(code, kills=1, rss=2 * GIGABYTE, limit=None).kind == "signal"


def test_a_small_process_is_not_said_to_have_run_out_of_memory_because_another_did() -> None:
    failure = exit_failure(code_of("import os; os.kill(os.getpid(), 9)"), kills=1)
    assert failure.kind == "signal"
    assert "memory" not in failure.message
    assert failure.hint.startswith("1 process")
    assert "control group" in failure.hint


def test_kills_elsewhere_on_the_machine_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the control group of this process, not what is above it, or below that."""
    group = tmp_path / "machine" / "group"
    group.mkdir(parents=True)
    (tmp_path / "machine" / "memory.events").write_text("oom 3\noom_kill 7\n")
    (group / "memory.events").write_text("oom 3\noom_kill 5\n")
    monkeypatch.setattr(linux, "memory_groups", lambda: (str(group), str(group.parent)))
    assert linux.out_of_memory_kills() == 0, "these include groups below"
    (tmp_path / "machine" / "memory.events.local").write_text("oom 2\noom_kill 2\n")
    assert linux.out_of_memory_kills() == 2
    (group / "memory.events.local").write_text("oom 1\noom_kill 1\n")
    assert linux.out_of_memory_kills() == 1
