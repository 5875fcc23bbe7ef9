"""chaos(): faults happen where they were asked for, once, and a fault that did not happen is an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, TrainingFailedError, UnknownArgumentError
from paceline.air.faults import FAULT_VARIABLE, NOTES_VARIABLE
from paceline.testing import Chaos, chaos
from paceline.testing.elastic_engine import ElasticEngine
from paceline.testing.invariants import check_run
from paceline.train import DataParallelTrainer

pytest_plugins = ["paceline.testing.fixtures"]


def count(config: dict[str, Any]) -> None:
    checkpoint = session.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["iteration"]
    for iteration in range(start + 1, config["iterations"] + 1):
        session.report({"iteration": iteration}, checkpoint=Checkpoint.from_dict({"iteration": iteration}))


def trainer(
    tmp_path: Path, *, iterations: int = 4, retries: int = 1, workers: Any = 2, **run: Any
) -> DataParallelTrainer:
    return DataParallelTrainer(
        count,
        train_loop_config={"iterations": iterations},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=str(tmp_path / "storage"),
            checkpoint_config=CheckpointConfig(keep_all_ranks=True),  # No rank is ahead of the one that fails.
            failure_config=FailureConfig(max_failures=retries, **run.pop("failures", {})),
            verbose=0,
            **run,
        ),
    )


def test_a_rank_is_killed_at_a_step_and_the_run_continues(tmp_path: Path) -> None:
    with chaos(kill={"rank": 1, "step": 3}) as faults:
        result = trainer(tmp_path).fit()
    check_run(result.path, result=result, iterations=4, attempts=2)
    (fired,) = faults.fired
    assert (fired.rank, fired.step, fired.attempt) == (1, 3, 0)
    assert fired.fault == "kill={'rank': 1, 'step': 3}"


def test_several_faults_of_one_kind_each_happen_once(tmp_path: Path) -> None:
    with chaos(kill=[{"rank": 0, "step": 2}, {"rank": 1, "step": 2}, {"rank": 1, "step": 4}]) as faults:
        result = trainer(tmp_path, retries=3).fit()
    assert len(faults.fired) == 3
    check_run(result.path, result=result, iterations=4)


def test_a_fault_may_happen_in_several_attempts(tmp_path: Path) -> None:
    with (
        chaos(kill={"rank": 0, "step": 2, "times": 2}) as faults,
        pytest.raises(TrainingFailedError, match="SIGKILL"),
    ):
        trainer(tmp_path).fit()
    assert [fired.attempt for fired in faults.fired] == [0, 1]


def test_a_fault_that_did_not_happen_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"kill=\{'rank': 5, 'step': 1\}"), chaos(kill={"rank": 5, "step": 1}):
        trainer(tmp_path, iterations=1, workers=1).fit()
    with chaos(kill={"rank": 5, "step": 1}, all_must_fire=False) as faults:
        pass
    assert faults.unfired == ["kill={'rank': 5, 'step': 1}"]


def test_the_error_of_the_block_goes_first() -> None:
    with pytest.raises(ValueError, match="its own") as caught, chaos(kill={"rank": 0, "step": 1}):
        raise ValueError("its own")
    assert any("never happened" in note for note in caught.value.__notes__)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    with chaos(corrupt_checkpoint={"step": 2}, kill={"rank": 0, "step": 3}):
        result = trainer(tmp_path).fit()
    check_run(result.path, result=result, iterations=4, attempts=2)
    assert any("checkpoint_000001 is damaged" in warning for warning in result.warnings)


def test_failing_storage_ends_the_run(tmp_path: Path) -> None:
    with (
        chaos(fail_storage={"rank": 0, "step": 3, "error": "ENOSPC"}),
        pytest.raises(TrainingFailedError, match="No space left") as caught,
    ):
        trainer(tmp_path).fit()
    assert caught.value.result is not None
    check_run(caught.value.result.path, error=caught.value, cause={"kind": "storage", "rank": 0}, attempts=1)


def test_slow_things_are_noted_for_each_process(tmp_path: Path) -> None:
    with chaos(
        slow={"rank": 1, "seconds": 0.001, "first_step": 2, "last_step": 3},
        slow_storage=[{"seconds": 0.001}, {"bytes_per_second": 1e9, "rank": 0}],
    ) as faults:
        trainer(tmp_path, iterations=4).fit()
    slowed = [fired for fired in faults.fired if fired.fault.startswith("slow=")]
    assert [(fired.rank, fired.step) for fired in slowed] == [(1, 2)]
    assert {"driver", 0} <= {fired.rank for fired in faults.fired}


def test_an_error_in_report(tmp_path: Path) -> None:
    with (
        chaos(fail={"rank": 1, "step": 2, "error": ValueError}),
        pytest.raises(TrainingFailedError) as caught,
    ):
        trainer(tmp_path, retries=0).fit()
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_rank_stalls_for_a_while(tmp_path: Path) -> None:
    with chaos(stall={"rank": 1, "step": 2, "seconds": 0.01}):
        assert trainer(tmp_path).fit().attempts == 1


@pytest.mark.faults
def test_a_stalled_rank_is_found_by_the_hang_limit(tmp_path: Path) -> None:
    with chaos(stall={"rank": 1, "step": 2}), pytest.raises(TrainingFailedError) as caught:
        trainer(tmp_path, retries=0, failures={"hang_timeout_s": 5.0}).fit()
    assert caught.value.root_cause is not None
    assert caught.value.root_cause.rank == 1


def test_a_node_is_lost(tmp_path: Path) -> None:
    """The run continues with the workers that are left room for."""
    with closing(ElasticEngine({"a": 1, "b": 1})) as engine:
        wanted = trainer(tmp_path, workers=(1, 2), retries=0, engine=engine)
        with chaos(lose_node={"engine": engine, "node": "b", "step": 2}):
            result = wanted.fit()
        check_run(result.path, result=result, iterations=4, attempts=2)
        assert engine.nodes == {"a": 1}


def test_sigterm_reaches_the_driver(tmp_path: Path) -> None:
    with chaos(sigterm={"rank": "driver", "step": 2}) as faults, pytest.raises(SystemExit) as ended:
        trainer(tmp_path, iterations=1000).fit()
    assert ended.value.code == 128 + signal.SIGTERM
    assert [fired.rank for fired in faults.fired] == ["driver"]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_kill_spares_the_process_of_the_test(tmp_path: Path, retries: int) -> None:
    """A retry does not get past it: the kill has not happened."""
    with chaos(kill={"rank": 0, "step": 1}, all_must_fire=False) as faults:
        with pytest.raises(TrainingFailedError, match="inline"):
            trainer(tmp_path, retries=retries, workers=1, engine="inline").fit()
        assert faults.fired == []


def test_a_directory_is_found_by_workers_wherever_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a working directory of their own."""
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    with chaos(kill={"rank": 0, "step": 2}, directory="notes") as faults:
        assert trainer(tmp_path, workers=1).fit().attempts == 2
    assert len(faults.fired) == 1
    assert not list(Path("notes").iterdir())
    with pytest.raises(ConfigError, match="missing' is not a directory"):
        chaos(kill={"rank": 0, "step": 2}, directory="missing")


def test_blocks_may_be_nested_and_leave_nothing(tmp_path: Path) -> None:
    with chaos(kill={"rank": 0, "step": 2}) as outer:
        with chaos(kill={"rank": 1, "step": 3}) as inner:
            result = trainer(tmp_path, retries=2).fit()
        assert [fired.rank for fired in outer.fired] == [0]
    assert [fired.rank for fired in inner.fired] == [1]
    assert result.attempts == 3
    assert FAULT_VARIABLE not in os.environ
    assert NOTES_VARIABLE not in os.environ


def test_faults_last_until_the_test_ends_with_the_fixture(chaos: Callable[..., Chaos], tmp_path: Path) -> None:
    faults = chaos(kill={"rank": 0, "step": 2})
    assert trainer(tmp_path, workers=1).fit().attempts == 2
    assert len(faults.fired) == 1


UNFIRED = """
pytest_plugins = ["paceline.testing.fixtures"]
def test_nothing(chaos):
    chaos(kill={"rank": 0, "step": 2})
"""


def test_the_fixture_fails_a_test_without_its_fault(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(UNFIRED.splitlines()[1])
    (tmp_path / "test_it.py").write_text("\n".join(UNFIRED.splitlines()[2:]))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "never happened" in ended.stdout


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"kil": {}}, "mean kill"),
        ({"kill": {"rank": 1, "stepp": 7}}, "needs 'step'"),
        ({"kill": {"rank": 1, "step": 7, "rankk": 7}}, "'rank'"),
        ({"kill": {"rank": 1, "step": 0}}, "step"),
        ({"kill": {"rank": -1, "step": 1}}, "rank"),
        ({"kill": {"rank": "driver", "step": 1}}, "process of its own"),
        ({"kill": 7}, "a dict of settings"),
        ({"kill": [7]}, "a dict of settings"),
        ({"stall": {"rank": 0, "step": 1, "how": "sigstop", "seconds": 3}}, "seconds"),
        ({"stall": {"rank": 0, "step": 1, "how": "nap"}}, "sigstop"),
        ({"slow": {"rank": 0, "seconds": 0}}, "above 0"),
        ({"fail": {"rank": 0, "step": 1, "error": "MyError"}}, "ValueError"),
        ({"corrupt_checkpoint": {"file": "a:b"}}, "pattern"),
        ({"slow_storage": {}}, "bytes_per_second"),
        ({"slow_storage": {"bytes_per_second": 5, "where": "store"}}, "checkpoint"),
        ({"fail_storage": {"error": "EWRONG"}}, "ENOSPC"),
        ({"fail_storage": {"where": "journal", "step": 3}}, "step"),
        ({"lose_node": {"node": "b", "step": 3, "engine": "local"}}, "ElasticEngine"),
    ],
)
def test_mistakes_are_named(faults: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, UnknownArgumentError), match=said):
        chaos(**faults)


@pytest.mark.parametrize("faults", [{}, {"kill": []}])
def test_no_fault_at_all_is_a_mistake(faults: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no fault"):
        chaos(**faults)
    with chaos(**faults, all_must_fire=False):
        pass


def test_a_node_that_does_not_exist_is_a_mistake() -> None:
    with closing(ElasticEngine({"a": 1, "node-b": 1})) as engine:
        with pytest.raises(ConfigError, match=r"no node 'node-c'.*mean node-b"):
            chaos(lose_node={"engine": engine, "node": "node-c", "step": 2})
        with pytest.raises(ConfigError, match="no node 'c' to lose"):
            engine.lose_node("c")


def test_the_kit_needs_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from paceline.testing import chaos; chaos(all_must_fire=False)"
    subprocess.run([sys.executable, "-c", code], check=True)
