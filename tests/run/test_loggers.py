"""The files that default loggers write: what other tools read from them, and how they go back."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas
import pytest

from paceline.air.errors import StorageError
from paceline.run.callbacks import CallbackList, RowLogger
from paceline.run.loggers import CSVLoggerCallback, JsonLoggerCallback, default_loggers
from paceline.run.spec import Trial
from tests.run.logged_rows import LoggerMaker, log, make_row, read_csv, read_events, read_json


class TestJson:
    def test_one_object_per_line(self, make: LoggerMaker, trial: Trial) -> None:
        rows = [make_row(i, loss=1 / i, nested={"a": [1, 2]}, text="two\nlines") for i in (1, 2)]
        log(make(JsonLoggerCallback), trial, rows)
        assert read_json(trial) == rows

    def test_pandas_reads_it(self, make: LoggerMaker, trial: Trial) -> None:
        log(make(JsonLoggerCallback), trial, [make_row(i, loss=0.5) for i in (1, 2, 3)])
        frame = pandas.read_json(Path(trial.local_path, "result.json"), lines=True)
        assert list(frame["training_iteration"]) == [1, 2, 3]

    def test_nan_and_infinity_become_null(self, make: LoggerMaker, trial: Trial) -> None:
        log(make(JsonLoggerCallback), trial, [make_row(1, a=math.nan, b=math.inf, c=-math.inf, d=1.5)])
        text = Path(trial.local_path, "result.json").read_text()
        assert '"a":null,"b":null,"c":null,"d":1.5' in text

    @pytest.mark.parametrize(
        "odd", [{(1, 2): 3}, 2**70, "\ud800", {"deep": {(0,): math.nan}}], ids=["key", "big", "surrogate", "nested"]
    )
    def test_what_json_cannot_say_does_not_stop_the_row(self, make: LoggerMaker, trial: Trial, odd: Any) -> None:
        log(make(JsonLoggerCallback), trial, [make_row(1, odd=odd, loss=math.nan)])
        (row,) = read_json(trial)
        assert row["training_iteration"] == 1
        assert row["loss"] is None
        assert "odd" in row

    def test_params_holds_the_configuration_with_odd_values_as_repr(self, make: LoggerMaker, trial: Trial) -> None:
        trial.config = {"lr": 0.1, "fn": print, "betas": (0.9, math.inf), "set": {"x"}, "nested": {3: 4}}
        make(JsonLoggerCallback).log_trial_start(trial)
        params = json.loads(Path(trial.local_path, "params.json").read_text())
        assert params == {"lr": 0.1, "fn": repr(print), "betas": [0.9, None], "set": "{'x'}", "nested": {"3": 4}}

    def test_a_configuration_that_contains_itself_ends(self, make: LoggerMaker, trial: Trial) -> None:
        trial.config["self"] = trial.config
        logger = make(JsonLoggerCallback)
        logger.log_trial_start(trial)
        log(logger, trial, [{"config": trial.config}])
        assert len(read_json(trial)) == 1


class TestCSV:
    def test_nested_metrics_are_columns(self, make: LoggerMaker, trial: Trial) -> None:
        log(make(CSVLoggerCallback), trial, [make_row(1, loss=0.5, eval={"acc": {"top1": 1.0}}, none=None, flag=True)])
        (row,) = read_csv(trial)
        assert row["eval/acc/top1"] == "1.0"
        assert row["config/train_loop_config/lr"] == "0.1"
        assert (row["none"], row["flag"]) == ("", "True")

    def test_numbers_keep_every_digit(self, make: LoggerMaker, trial: Trial) -> None:
        values = [0.1 + 0.2, 1e-300, math.inf, math.nan]
        log(make(CSVLoggerCallback), trial, [make_row(i, loss=value) for i, value in enumerate(values)])
        frame = pandas.read_csv(Path(trial.local_path, "progress.csv"))
        assert list(frame["loss"])[:3] == values[:3]
        assert math.isnan(list(frame["loss"])[3])

    def test_a_row_is_one_line_whatever_it_holds(self, make: LoggerMaker, trial: Trial) -> None:
        class Tall:
            def __str__(self) -> str:
                return "tall\nobject"

        texts = ["a\nb", 'q"uo,te', "\r\n", "plain", Tall(), ["x\ny", 2]]
        log(make(CSVLoggerCallback), trial, [make_row(i, text=text) for i, text in enumerate(texts)])
        assert len(Path(trial.local_path, "progress.csv").read_bytes().splitlines()) == 1 + len(texts)
        assert [row["text"] for row in read_csv(trial)] == [
            "a\\nb", 'q"uo,te', "\\r\\n", "plain", "tall\\nobject", "['x\\ny', 2]",
        ]  # fmt: skip

    def test_a_late_metric_adds_a_column(self, make: LoggerMaker, trial: Trial) -> None:
        logger = make(CSVLoggerCallback)
        log(logger, trial, [make_row(1, loss=1), make_row(2, loss=2)])
        log(logger, trial, [make_row(3, loss=3, accuracy=0.5), make_row(4, loss=4, extra="x,y")])
        log(logger, trial, [make_row(5, loss=5)])
        rows = read_csv(trial)
        assert [row["loss"] for row in rows] == ["1", "2", "3", "4", "5"]
        assert [row["accuracy"] for row in rows] == ["", "", "0.5", "", ""]
        assert [row["extra"] for row in rows] == ["", "", "", "x,y", ""]
        frame = pandas.read_csv(Path(trial.local_path, "progress.csv"))
        assert list(frame["training_iteration"]) == [1, 2, 3, 4, 5]
        assert not list(Path(trial.local_path).glob(".*")), "no temporary file is left"

    def test_what_a_driver_killed_while_adding_columns_left_is_removed(self, make: LoggerMaker, trial: Trial) -> None:
        Path(trial.local_path, ".progress.csv.tmp").write_text("half a tab")
        logger = make(CSVLoggerCallback)
        log(logger, trial, [make_row(1, loss=1)])
        log(logger, trial, [make_row(2, loss=2, late=3)])
        assert [row["late"] for row in read_csv(trial)] == ["", "3"]
        assert [path.name for path in Path(trial.local_path).iterdir()] == ["progress.csv"]

    def test_another_driver_goes_on_with_the_same_columns(self, make: LoggerMaker, trial: Trial) -> None:
        first = make(CSVLoggerCallback)
        log(first, trial, [make_row(1, b=1, a=2), make_row(2, b=3, a=4)])
        first.log_trial_end(trial)
        second = make(CSVLoggerCallback)
        assert second.rewind(trial, 2) == 2
        log(second, trial, [make_row(3, a=6, b=5, c=7)])
        assert [(row["a"], row["b"], row["c"]) for row in read_csv(trial)] == [
            ("2", "1", ""), ("4", "3", ""), ("6", "5", "7"),
        ]  # fmt: skip


@pytest.mark.parametrize("kind", [JsonLoggerCallback, CSVLoggerCallback])
class TestLineFiles:
    """What the two files of lines have in common."""

    def iterations(self, trial: Trial) -> list[int]:
        name = {True: "result.json", False: "progress.csv"}[Path(trial.local_path, "result.json").exists()]
        rows = read_json(trial) if name == "result.json" else read_csv(trial)
        return [int(row["training_iteration"]) for row in rows]

    def test_rewind_keeps_the_first_rows(self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]) -> None:
        logger = make(kind)
        logger.log_rows(trial, [make_row(i, loss=i) for i in range(1, 6)])
        assert logger.rewind(trial, 3) == 3
        log(logger, trial, [make_row(4, loss=40), make_row(5, loss=50)])
        assert self.iterations(trial) == [1, 2, 3, 4, 5]

    def test_rewind_to_the_beginning(self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]) -> None:
        logger = make(kind)
        logger.log_rows(trial, [make_row(i, old=i) for i in range(1, 4)])
        assert logger.rewind(trial, 0) == 0
        log(logger, trial, [make_row(1, new=1)])
        assert self.iterations(trial) == [1]

    def test_rewind_of_a_large_file(self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]) -> None:
        logger = make(kind)
        rows = [make_row(i, text="x" * (i % 500)) for i in range(1, 5001)]
        logger.log_rows(trial, rows)
        for keep in (4999, 2500, 1):
            assert logger.rewind(trial, keep) == keep
            assert self.iterations(trial) == list(range(1, keep + 1))

    def test_rewind_says_how_many_rows_are_there(self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]) -> None:
        logger = make(kind)
        assert logger.rewind(trial, 10) == 0
        log(logger, trial, [make_row(1, loss=1)])
        assert logger.rewind(trial, 10) == 1

    def test_a_torn_last_line_is_dropped(self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]) -> None:
        first = make(kind)
        log(first, trial, [make_row(i, loss=i) for i in (1, 2, 3)])
        first.log_trial_end(trial)
        (path,) = (path for path in Path(trial.local_path).iterdir() if path.name != "params.json")
        os.truncate(path, path.stat().st_size - 4)
        second = make(kind)
        assert second.rewind(trial, 3) == 2
        log(second, trial, [make_row(3, loss=3)])
        assert self.iterations(trial) == [1, 2, 3]

    def test_a_torn_line_longer_than_any_buffer_is_dropped(
        self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]
    ) -> None:
        first = make(kind)
        log(first, trial, [make_row(1, text="a"), make_row(2, text="b" * 1_000_000)])
        first.log_trial_end(trial)
        (path,) = (path for path in Path(trial.local_path).iterdir() if path.name != "params.json")
        os.truncate(path, path.stat().st_size - 1)
        assert make(kind).rewind(trial, 2) == 1
        assert self.iterations(trial) == [1]

    def test_nothing_is_lost_at_the_end(self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]) -> None:
        logger = make(kind)
        logger.log_rows(trial, [make_row(1, loss=1)])
        logger.log_trial_end(trial, failed=True)
        assert self.iterations(trial) == [1]

    def test_a_directory_that_is_gone_is_not_made_anew(
        self, make: LoggerMaker, trial: Trial, kind: type[RowLogger]
    ) -> None:
        trial.local_path += "/gone"
        with pytest.raises(StorageError) as caught:
            make(kind).log_rows(trial, [make_row(1)])
        assert caught.value.errno == errno.ENOENT
        assert not Path(trial.local_path).exists()

    def test_a_write_that_the_system_refuses_is_a_storage_error(self, trial: Trial, kind: type[RowLogger]) -> None:
        logger = kind()
        with largest_file(4096), pytest.raises(StorageError, match=r"result\.json|progress\.csv"):
            log(logger, trial, [make_row(1, text="x" * 10_000)])
        with largest_file(4096), pytest.raises(StorageError):
            logger.log_trial_end(trial)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Within, the system refuses to let a file grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_trials_are_kept_apart(tmp_path: Path) -> None:
    trials = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        trials.append(Trial(f"4913f_0000{number}", "Trainer", str(tmp_path / str(number)), "e1"))
    callbacks = CallbackList([], default_loggers())
    for trial in trials:
        callbacks.on_trial_start(0, trial)
    for iteration in (1, 2):
        for trial in trials:
            callbacks.log_rows(trial, [make_row(iteration, name=trial.trial_id)])
    for trial in trials:
        callbacks.close_trial(trial, failed=False)
    for trial in trials:
        assert [row["name"] for row in read_json(trial)] == [trial.trial_id] * 2
        assert [row["name"] for row in read_csv(trial)] == [trial.trial_id] * 2
        assert len(read_events(trial)) == 3


def test_files_are_for_this_user_alone(trial: Trial) -> None:
    callbacks = CallbackList([], default_loggers())
    callbacks.on_trial_start(0, trial)
    callbacks.log_rows(trial, [make_row(1, loss=1)])
    callbacks.log_rows(trial, [make_row(2, accuracy=1)])
    callbacks.close_trial(trial, failed=False)
    modes = {
        path.name.split(".tfevents")[0]: oct(path.stat().st_mode & 0o777) for path in Path(trial.local_path).iterdir()
    }
    assert modes == dict.fromkeys(["params.json", "result.json", "progress.csv", "events.out"], "0o600")


def test_long_values_of_a_configuration_are_not_written_with_every_row(trial: Trial) -> None:
    long: dict[str, Any] = {"blob": b"x" * 50_000, "nested": {"text": "y" * 50_000, "items": list(range(20_000))}}
    trial.config = {**long, "lr": 0.1}
    callbacks = CallbackList([], default_loggers())
    callbacks.on_trial_start(0, trial)
    callbacks.log_rows(trial, [{**make_row(number, loss=1), "config": trial.config} for number in (1, 2)])
    callbacks.close_trial(trial, failed=False)
    assert all(path.stat().st_size < 5_000 for path in Path(trial.local_path).iterdir())
    expected = {"blob": "<bytes of length 50000>", "lr": 0.1}
    nested = {"text": "<str of length 50000>", "items": "<list of length 20000>"}
    assert read_json(trial)[1]["config"] == {**expected, "nested": nested}
    assert read_csv(trial)[1]["config/nested/text"] == "<str of length 50000>"
    assert json.loads(Path(trial.local_path, "params.json").read_text()) == {**expected, "nested": nested}


def test_a_json_logger_of_its_own_writes_the_parameters(trial: Trial) -> None:
    trial.config = {"lr": 0.1}
    logger = JsonLoggerCallback()
    logger.on_trial_result(1, [trial], trial, make_row(1, loss=1))
    logger.on_trial_complete(1, [trial], trial)
    assert json.loads(Path(trial.local_path, "params.json").read_text()) == {"lr": 0.1}
    assert len(Path(trial.local_path, "result.json").read_text().splitlines()) == 1
