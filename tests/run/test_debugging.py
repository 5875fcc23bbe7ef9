"""breakpoint() in ranks, used as a person would: in a real terminal, over the ranks' channels."""

from __future__ import annotations

import re
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from paceline import train, tune
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.testing.invariants import check_run
from paceline.testing.processes import Driver
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.terminal import Terminal

PROGRAM = """
    import os, sys, threading, time, traceback
    from pathlib import Path
    from paceline import train
    from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

    folder = Path({folder!r})

    def loop():
        rank = train.get_context().get_world_rank()
        {loop}

    failures = FailureConfig({failures})
    config = RunConfig(storage_path=str(folder), name="debugged", failure_config=failures, {config})
    scaling = ScalingConfig(num_workers={workers})
    result = DataParallelTrainer(loop, scaling_config=scaling, run_config=config).fit()
    print("THE END", result.status, result.metrics.get("value"), result.warnings)
"""


def program(folder: Path, loop: str, *, workers: int = 2, config: str = "", failures: str = "") -> list[str]:
    script = folder / "script.py"
    body = textwrap.indent(textwrap.dedent(loop).strip(), "    ").strip().replace("UNTIL_TOLD", UNTIL_TOLD)
    given = {"folder": str(folder), "workers": workers, "config": config, "failures": failures}
    script.write_text(textwrap.dedent(PROGRAM).format(loop=body, **given))
    return [str(script)]


def trial_dir(folder: Path) -> Path:
    (found,) = (path for path in (folder / "debugged").iterdir() if path.is_dir())
    return found


TWO_EPOCHS = """
    for epoch in range(3):
        value = 100 * rank + epoch
        if epoch == 1 and rank == 1:
            breakpoint()
        train.report({"value": value})
"""
UNTIL_TOLD = """while rank == 0 and epoch == 1 and not (folder / "go").exists():
            time.sleep(0.01)"""
"""Rank 0 gets further only after rank 1 has the debugger."""


class TestBreakpoint:
    def test_stops_one_rank_and_continues(self, tmp_path: Path) -> None:
        """No watch ends the run meanwhile: the rank is in the debugger for longer than both of them allow."""
        failures = "hang_timeout_s=0.4, heartbeat_timeout_s=1.0"
        loop = """
            for epoch in range(3):
                value = 100 * rank + epoch
                UNTIL_TOLD
                if epoch == 1 and rank == 1:
                    breakpoint()
                train.report({"value": value})
            (folder / f"done {rank}").touch()
        """
        command = program(tmp_path, loop, failures=failures)
        with Terminal(command, columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            assert re.search(rf"rank 1 stopped at {tmp_path}/script.py:\d+ in loop\(\)", terminal.text)
            (tmp_path / "go").touch()
            terminal.press("p value\n")
            terminal.wait_for("101")
            terminal.press("!import time; time.sleep(1.5)\n")
            terminal.press("print('slept', 6 * 7)\n")
            terminal.wait_for("slept 42")
            assert not (tmp_path / "done 0").exists(), "rank 0 did not wait in report()"
            assert " · " not in "\n".join(terminal.screen), "the display was drawn over the debugger"
            terminal.press("c\n")
            assert terminal.finish() == 0, terminal.text
        assert "THE END finished 2 []" in terminal.text
        check_run(trial_dir(tmp_path), result=None, iterations=3)

    def test_steps_and_shows_what_they_print(self, tmp_path: Path) -> None:
        loop = """
            breakpoint()
            print("first line")
            value = 1
            train.report({"value": value})
        """
        with Terminal(program(tmp_path, loop, workers=1), columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            assert '-> print("first line")' in terminal.text
            terminal.press("n\n")
            terminal.wait_for("-> value = 1")
            lines = terminal.lines
            assert lines.index("(rank 0) first line") < lines.index("-> value = 1")
            terminal.press("n\nn\n")
            terminal.wait_for("--Return--")
            assert terminal.text.count("rank 0 stopped") == 1, "a step is not a new stop"
            terminal.press("n\n")  # What follows is not the user's code.
            assert terminal.finish() == 0, terminal.text
        assert "THE END finished 1" in terminal.text

    def test_ranks_queue_up(self, tmp_path: Path) -> None:
        loop = """
            value = 7 + rank
            breakpoint()
            train.report({"value": value})
        """
        with Terminal(program(tmp_path, loop), columns=160) as terminal:
            asked = []
            for _ in range(2):
                terminal.wait_for("(Pdb)")
                asked += [rank for rank in (0, 1) if f"rank {rank} stopped at" in terminal.text and rank not in asked]
                (rank,) = asked[-1:]
                terminal.press("p 'value', value * 1000\n")
                terminal.wait_for(f"('value', {7000 + 1000 * rank})")
                terminal.press("c\n")
                if len(asked) == 1:
                    terminal.wait_for(f"rank {1 - rank} stopped at")
            assert terminal.finish() == 0, terminal.text
        assert sorted(asked) == [0, 1]
        assert "THE END finished 7" in terminal.text

    def test_in_a_thread_while_another_one_reports(self, tmp_path: Path) -> None:
        """The thread that is in report() reads the messages of the rank, those for the debugger included."""
        loop = """
            def look():
                stack = ""
                while "_wait_for_answer" not in stack:
                    stack = "".join(traceback.format_stack(sys._current_frames()[threading.main_thread().ident]))
                answer = 6 * 7
                breakpoint()
                answer += 1

            if rank == 0:
                helper = threading.Thread(target=look)
                helper.start()
            while rank == 1 and not (folder / "go").exists():
                time.sleep(0.01)
            train.report({"value": 5}, reduce={"value": "mean"})
            if rank == 0:
                helper.join()
        """
        with Terminal(program(tmp_path, loop), columns=160) as terminal:
            terminal.wait_for("-> answer += 1")
            terminal.press("p answer\n")
            terminal.wait_for("42")
            (tmp_path / "go").touch()
            terminal.press("c\n")
            assert terminal.finish() == 0, terminal.text
        assert "THE END finished 5" in terminal.text

    @pytest.mark.parametrize("keys", ["q\n", "\x04"], ids=["quit", "Ctrl-D"])
    def test_quitting_ends_the_run_like_an_interrupt(self, tmp_path: Path, keys: str) -> None:
        with Terminal(program(tmp_path, TWO_EPOCHS, failures="max_failures=3"), columns=200) as terminal:
            terminal.wait_for("(Pdb)")
            terminal.press(keys)
            assert terminal.finish() == 130, terminal.text
        assert "interrupted after" in terminal.text
        assert "KeyboardInterrupt: training was interrupted; what was reached is in" in terminal.text.replace("\n", " ")
        assert "THE END" not in terminal.text
        assert "failed while stopping" not in terminal.text
        check_run(trial_dir(tmp_path), result=None)

    def test_an_interrupt_is_for_the_line(self, tmp_path: Path) -> None:
        with Terminal(program(tmp_path, TWO_EPOCHS), columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            terminal.press("raise SystemExit")
            terminal.interrupt()
            terminal.wait_for("--KeyboardInterrupt--")
            terminal.press("p value\n")
            terminal.wait_for("101")
            terminal.press("c\n")
            assert terminal.finish() == 0, terminal.text
        assert "THE END finished 2 []" in terminal.text

    def test_a_rank_that_dies_in_it_is_a_failure_as_usual(self, tmp_path: Path) -> None:
        with Terminal(program(tmp_path, TWO_EPOCHS), columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            terminal.press("!import os; os.kill(os.getpid(), 9)\n")
            assert terminal.finish() == 1, terminal.text
        assert "Rank 1 has ended." in terminal.text
        assert "TrainingFailedError" in terminal.text
        assert "SIGKILL" in terminal.text

    def test_a_second_interrupt_ends_the_run(self, tmp_path: Path) -> None:
        """While the rank computes, nobody types: Ctrl-C asks for a stop, and the second one does not wait for it."""
        with Terminal(program(tmp_path, TWO_EPOCHS), columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            terminal.press("!import time; print('busy', 6 * 7, flush=True); time.sleep(600)\n")
            terminal.wait_for("busy 42")
            terminal.interrupt()
            terminal.wait_for("A stop was requested")
            terminal.interrupt()
            assert terminal.finish() == 130, terminal.text
        assert " interrupted after " in terminal.text

    def test_a_terminal_that_goes_away_ends_the_run_gracefully(self, tmp_path: Path) -> None:
        """The rank leaves the debugger, and all stop after the same report."""
        with Terminal(program(tmp_path, TWO_EPOCHS.replace("range(3)", "range(10**6)")), columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            assert terminal.hang_up() == 128 + signal.SIGHUP
        check_run(trial_dir(tmp_path), result=None)
        journal = (trial_dir(tmp_path) / "journal.jsonl").read_text()
        assert '"status":"interrupted"' in journal
        assert "grace period" not in journal


class TestPostMortem:
    def test_opens_on_the_rank_that_raised(self, tmp_path: Path) -> None:
        """The other rank waits in report(), and the failure is handled as usual afterwards: by a retry, here."""
        loop = """
            def divide(number):
                return 1 / number

            for epoch in range(3):
                culprit = 41 + epoch
                UNTIL_TOLD
                if rank == 1 and epoch == 1 and not (folder / "failed").exists():
                    (folder / "failed").touch()
                    divide(0)
                train.report({"value": epoch})
            (folder / f"done {rank}").touch()
        """
        command = program(tmp_path, loop, config="debug='post_mortem'", failures="max_failures=1, hang_timeout_s=0.4")
        with Terminal(command, columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            assert "in divide(): ZeroDivisionError: division by zero" in terminal.text
            (tmp_path / "go").touch()
            terminal.press("p number, 6 * 7\n")
            terminal.wait_for("(0, 42)")
            terminal.press("!import time; time.sleep(1)\n")
            terminal.press("up\n")
            terminal.wait_for("-> divide(0)")
            terminal.press("p culprit * 1000\n")
            terminal.wait_for("42000")
            assert not (tmp_path / "done 0").exists(), "rank 0 did not wait in report()"
            terminal.press("q\n")
            assert terminal.finish() == 0, terminal.text
        assert "attempt 1 failed" in terminal.text
        assert "THE END finished 2 []" in terminal.text
        check_run(trial_dir(tmp_path), result=None, attempts=2)

    def test_opens_at_the_users_line_if_a_library_raised(self, tmp_path: Path) -> None:
        loop = """
            import json
            wanted = 41 + 1
            json.loads("{")
        """
        with Terminal(program(tmp_path, loop, config="debug='post_mortem'"), columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            assert '-> json.loads("{")' in terminal.text
            assert "json/decoder.py" not in terminal.text
            terminal.press("p wanted * 1000\n")
            terminal.wait_for("42000")
            terminal.press("down\n")
            terminal.wait_for("json/__init__.py")
            terminal.press("q\n")
            terminal.finish()
        assert " in loop(): JSONDecodeError" in terminal.text

    def test_one_rank_is_examined_when_all_fail(self, tmp_path: Path) -> None:
        """An error that paceline raises is shown at the user's line."""
        command = program(tmp_path, "train.report({'value': object()})", config="debug='post_mortem'")
        with Terminal(command, columns=160) as terminal:
            terminal.wait_for("(Pdb)")
            assert "-> train.report({'value': object()})" in terminal.text
            terminal.press("w\n")
            terminal.press("p 6 * 7\n")
            terminal.wait_for("42")
            assert "paceline/run" not in terminal.text.partition("(Pdb)")[2]
            terminal.press("c\n")
            assert terminal.finish() == 1, terminal.text
        assert len(re.findall(r"rank \d failed at", terminal.text)) == 1
        assert "TrainingFailedError" in terminal.text

    def test_a_search_rejects_it(self, tmp_path: Path) -> None:
        run_config = RunConfig(storage_path=str(tmp_path), debug="post_mortem")
        with pytest.raises(ConfigError, match=r"debug='post_mortem'.*search"):
            tune.Tuner(lambda config: None, run_config=run_config).fit()

    def test_unknown_settings_are_rejected(self) -> None:
        with pytest.raises(ConfigError, match="'post_mortem'"):
            RunConfig(debug="pdb")  # type: ignore[arg-type]


def fit(loop: Any, storage: Path, **config: Any) -> Any:
    run_config = RunConfig(storage_path=str(storage), verbose=0, **config)
    return DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()


class TestElsewhere:
    def test_without_a_terminal_it_says_how_to_attach(self, tmp_path: Path) -> None:
        loop = """
            for epoch in range(2):
                breakpoint()
                train.report({"value": epoch})
        """
        with Driver(
            program(tmp_path, loop, config="debug='post_mortem', verbose=3"), output=tmp_path / "out"
        ) as driver:
            assert driver.wait() == 0
            text = driver.text()
        assert "THE END finished 1" in text
        for rank in (0, 1):
            (told,) = [line for line in text.splitlines() if line.startswith(f"(rank {rank}) breakpoint()")]
            assert re.search(rf"script.py:\d+ on rank {rank} ", told)
            assert "has no terminal" in told
        assert f"paceline stacks {trial_dir(tmp_path)}" in text
        assert "PYTHONBREAKPOINT=remote_pdb.set_trace" in text
        assert text.count("Warning: RunConfig(debug='post_mortem') has no effect") == 1

    def test_the_variable_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def loop() -> None:
            breakpoint()
            train.report({"value": 1})

        monkeypatch.setenv("PYTHONBREAKPOINT", "0")
        result = fit(loop, tmp_path)
        assert (result.metrics["value"], result.warnings) == (1, [])
        assert "breakpoint" not in (Path(result.path) / "logs" / "rank_0.log").read_text()

    def test_a_function_named_by_the_variable_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def loop() -> None:
            train.report({"value": breakpoint()})  # type: ignore[func-returns-value]

        monkeypatch.setenv("PYTHONBREAKPOINT", "os.getpid")
        assert fit(loop, tmp_path).metrics["value"] > 0

    def test_a_hook_of_the_users_wins(self, tmp_path: Path) -> None:
        def loop() -> None:
            import sys

            sys.breakpointhook = lambda: 42
            train.report({"value": breakpoint()})  # type: ignore[func-returns-value]

        assert fit(loop, tmp_path).metrics["value"] == 42

    def test_a_child_of_a_worker_is_told(self, tmp_path: Path) -> None:
        def loop() -> None:
            import os

            child = os.fork()
            if child == 0:
                breakpoint()
                os._exit(7)
            train.report({"value": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})

        result = fit(loop, tmp_path)
        assert result.metrics["value"] == 7
        assert "num_workers=0" in (Path(result.path) / "logs" / "rank_0.log").read_text()

    def test_a_trial_of_a_search_rejects_it(self, tmp_path: Path) -> None:
        def objective(config: dict[str, Any]) -> None:
            breakpoint()

        run_config = RunConfig(storage_path=str(tmp_path), verbose=0)
        (result,) = tune.Tuner(objective, run_config=run_config).fit()
        assert isinstance(result.error, TrainingFailedError)
        assert "breakpoint() does not work in the trials of a search" in str(result.error)
        assert "PYTHONBREAKPOINT=0" in str(result.error)
