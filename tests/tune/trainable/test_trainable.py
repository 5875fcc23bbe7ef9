"""Trainable classes: alone, and as trials with checkpoints, stops and retries."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig
from paceline.air.errors import ConfigError, MetricError, RestoreError, TrainingFailedError
from paceline.air.resources import PlacementGroupFactory
from paceline.air.result import Result
from paceline.tune.trainable.kinds import kind_of
from paceline.tune.trainable.trainable import Trainable
from tests.tune.trainable.one_trial import run_trial


class Counter(Trainable):
    """Counts from config["start"]; its state is a dict."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = config.get("start", 0)
        self.restored_from: int | None = None

    def step(self) -> dict[str, Any]:
        self.count += 1
        if self.count == self.config.get("fails_at") and self.restored_from is None:
            raise RuntimeError("as told")
        return {
            "count": self.count,
            "before": self.iteration,
            "restored_from": self.restored_from,
            "done": self.count >= self.config.get("last", 5),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        assert set(checkpoint) == {"count"}
        self.count = self.restored_from = checkpoint["count"]

    def cleanup(self) -> None:
        if "note" in self.config:
            with open(self.config["note"], "a") as file:
                file.write(f"{self.count}\n")


class CounterInFiles(Counter):
    """The same with its state in a file."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        Path(checkpoint_dir, "count").write_text(str(self.count))
        return checkpoint_dir

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = self.restored_from = int(Path(checkpoint, "count").read_text())


class CounterInOneFile(Counter):
    """The same, with the path of that file as what is saved and loaded."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        file = Path(checkpoint_dir, "state", "count")
        file.parent.mkdir()
        file.write_text(str(self.count))
        return str(file)

    def load_checkpoint(self, checkpoint: Any) -> None:
        assert checkpoint.endswith("/state/count")
        self.count = self.restored_from = int(Path(checkpoint).read_text())


class CounterInNamelessFiles(CounterInFiles):
    """Returns nothing: all that it wrote belongs to the checkpoint."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        super().save_checkpoint(checkpoint_dir)


BOTH = pytest.mark.parametrize("trainable", [Counter, CounterInFiles])
FORMS = pytest.mark.parametrize("trainable", [Counter, CounterInFiles, CounterInOneFile, CounterInNamelessFiles])


def numbers(result: Result) -> list[int | None]:
    return [checkpoint.number for checkpoint, _ in result.best_checkpoints]


def column(result: Result, name: str) -> list[Any]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe[name])


# -- as trials ----------------------------------------------------------------------------------


def test_steps_until_a_result_says_done(tmp_path: Path) -> None:
    result = run_trial(Counter, {"start": 2, "note": str(tmp_path / "note")})
    assert column(result, "count") == [3, 4, 5]
    assert column(result, "before") == [0, 1, 2]
    assert result.metrics["done"] is True
    assert result.metrics["training_iteration"] == 3
    assert result.checkpoint is None
    assert (tmp_path / "note").read_text() == "5\n"


@BOTH
def test_checkpoints_are_numbered_by_iteration(trainable: type[Trainable]) -> None:
    result = run_trial(trainable, checkpoint_config=CheckpointConfig(checkpoint_frequency=2))
    assert numbers(result) == [2, 4]
    assert [path.name for path in Path(result.path).glob(".checkpoint_*")] == []
    assert numbers(run_trial(trainable, checkpoint_every=2)) == [2, 4]


@BOTH
@pytest.mark.parametrize("in_background", [False, True])
def test_a_checkpoint_at_the_end_also_of_a_trial_that_is_stopped(
    trainable: type[Trainable], in_background: bool
) -> None:
    kept = CheckpointConfig(checkpoint_at_end=True, async_save=in_background)
    finished = run_trial(trainable, checkpoint_config=kept)
    stopped = run_trial(trainable, checkpoint_config=kept, stop={"training_iteration": 3})
    assert (numbers(finished), numbers(stopped)) == ([5], [3])
    again = trainable({})
    assert stopped.checkpoint is not None
    again.restore(stopped.checkpoint)
    assert (again.train()["count"], again.iteration) == (4, 4)


def test_a_stop_is_exact_and_cleans_up(tmp_path: Path) -> None:
    result = run_trial(Counter, {"last": 100, "note": str(tmp_path / "note")}, stop={"count": 7})
    assert result.metrics["count"] == 7
    assert (tmp_path / "note").read_text() == "7\n"


@FORMS
def test_a_retry_goes_on_at_the_checkpoint(trainable: type[Trainable], tmp_path: Path) -> None:
    result = run_trial(
        trainable,
        {"fails_at": 4, "note": str(tmp_path / "note")},
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        failure_config=FailureConfig(max_failures=1),
    )
    assert column(result, "count") == [1, 2, 3, 4, 5]
    assert column(result, "before") == [0, 1, 2, 3, 4]
    assert result.metrics["restored_from"] == 2
    assert numbers(result) == [2, 4]
    assert (tmp_path / "note").read_text() == "4\n5\n"  # what failed was cleaned up, too


def test_a_step_asks_for_a_checkpoint_by_its_result() -> None:
    class Asks(Counter):
        def step(self) -> dict[str, Any]:
            return {**super().step(), "should_checkpoint": self.count == 3}

    assert numbers(run_trial(Asks)) == [3]


def test_mistakes_of_a_class_are_told() -> None:
    class NoDict(Trainable):
        def step(self) -> Any:
            return 3

    with pytest.raises(TrainingFailedError, match=r"NoDict.step\(\).*\b3\b.*dict") as failed:
        run_trial(NoDict)
    assert isinstance(failed.value.__cause__, MetricError)
    with pytest.raises(ConfigError, match=r"Trainable.*step\(self\)"):
        kind_of(Trainable)
    with pytest.raises(ConfigError, match=r"object of Counter.*class"):
        kind_of(Counter())
    saving = RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1))
    with pytest.raises(ConfigError, match=r"NoDict.*save_checkpoint\(\)"):
        kind_of(NoDict).check_run_config(saving)
    kind_of(Counter).check_run_config(saving)


def test_an_init_that_forgets_that_of_the_base_is_told() -> None:
    class Forgets(Counter):
        def __init__(self, config: dict[str, Any]) -> None:
            self.count = config.get("start", 0)

    with pytest.raises(TrainingFailedError, match=r"Forgets.__init__\(\).*super\(\).__init__\(config\)"):
        run_trial(Forgets)
    with pytest.raises(ConfigError, match=r"setup\(self, config\)"):
        Forgets({}).train()


def test_the_resources_that_a_class_asks_for() -> None:
    class Greedy(Counter):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
            return PlacementGroupFactory([{"CPU": config["cpus"]}])

    assert kind_of(Greedy).resources({"cpus": 3}).required_resources == {"CPU": 3}
    assert kind_of(Counter).resources({}).required_resources == {"CPU": 1}

    class Plain(Counter):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> dict[str, float]:
            return {"cpu": 2}

    assert kind_of(Plain).resources({}).required_resources == {"CPU": 2}


# -- alone --------------------------------------------------------------------------------------


@FORMS
def test_a_trainable_by_itself(trainable: type[Trainable], tmp_path: Path) -> None:
    first = trainable({"start": 1})
    assert first.train()["count"] == 2
    row = first.train()
    assert (row["count"], row["training_iteration"], row["iterations_since_restore"]) == (3, 2, 2)
    path = first.save()
    assert Path(path).parent == Path(first.logdir)
    assert Path(path).name == "checkpoint_000002"

    second = trainable({"start": 1})
    second.restore(path)
    assert second.iteration == second.training_iteration == 2
    row = second.train()
    assert (row["count"], row["training_iteration"], row["iterations_since_restore"]) == (4, 3, 1)
    assert row["time_total_s"] >= row["time_since_restore"]
    assert second.save(tmp_path / "mine") == str(tmp_path / "mine")
    third = trainable()
    third.restore(Checkpoint.from_directory(tmp_path / "mine"))
    assert third.train()["count"] == 5
    for each in (first, second, third):
        each.stop()


def test_what_libraries_return_for_several_files_comes_back(tmp_path: Path) -> None:
    class Prefixed(CounterInFiles):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            Path(checkpoint_dir, "model.index").write_text(str(self.count))
            return os.path.join(checkpoint_dir, "model")

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.count = int(Path(f"{checkpoint}.index").read_text())

    first, second = Prefixed({"start": 4}), Prefixed()
    second.restore(first.save(tmp_path / "saved"))
    assert second.count == 4


@pytest.mark.parametrize("returned", ["/etc/passwd", "../outside", 3])
def test_what_is_not_in_the_directory_cannot_be_a_checkpoint(returned: Any, tmp_path: Path) -> None:
    class Astray(Counter):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            return returned

    with pytest.raises(TypeError, match=r"Astray.save_checkpoint\(\).*file or directory in checkpoint_dir"):
        Astray().save(tmp_path / "saved")


def test_a_checkpoint_cannot_name_a_file_outside_of_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_directory(CounterInOneFile().save(tmp_path / "saved"))
    checkpoint.update_metadata({"trainable": {"iteration": 1, "path": "../../outside"}})
    with pytest.raises(RestoreError, match=r"outside.*not inside"):
        CounterInOneFile().restore(checkpoint)


def test_the_configuration_of_a_trainable_is_its_own() -> None:
    class Changes(Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            config["layers"].append(3)

    config = {"layers": [1, 2]}
    assert Changes(config).config == {"layers": [1, 2]}
    assert Changes(config).reset_config({"layers": []}) is False
    assert (Changes(config).trial_id, Changes(config).trial_name) == ("default", "Changes")


class Untidy(Counter):
    """Cannot be cleaned up."""

    def cleanup(self) -> None:
        raise OSError("not clean")


def test_an_error_is_not_hidden_by_one_of_cleanup() -> None:
    result = run_trial(Untidy, {"fails_at": 2}, raise_on_error=False)
    assert "RuntimeError: as told" in str(result.error).splitlines()[0]
    assert any(re.search(r"cleanup\(\).*OSError\('not clean'\)", warning) for warning in result.warnings)


def test_a_stopped_trial_whose_cleanup_fails_says_so() -> None:
    result = run_trial(Untidy, stop={"training_iteration": 2})
    assert result.error is None
    assert any(re.search(r"cleanup\(\).*OSError\('not clean'\)", warning) for warning in result.warnings)


def test_after_a_good_end_a_failing_cleanup_is_an_error() -> None:
    result = run_trial(Untidy, {"last": 2}, raise_on_error=False)
    assert "OSError: not clean" in str(result.error)


def test_a_row_that_was_saved_is_not_saved_again_at_the_end(tmp_path: Path) -> None:
    class Noting(Counter):
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            with open(self.config["saved"], "a") as file:
                file.write(f"{self.count} ")
            return super().save_checkpoint(checkpoint_dir)

    saving = CheckpointConfig(checkpoint_frequency=1, checkpoint_at_end=True)
    config = {"saved": str(tmp_path / "saved")}
    result = run_trial(Noting, config, stop={"training_iteration": 2}, checkpoint_config=saving)
    assert (tmp_path / "saved").read_text().split() == ["1", "2"]
    assert numbers(result) == [1, 2]
