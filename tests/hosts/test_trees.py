"""XGBoost and LightGBM on two hosts make the model that they make on one machine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.air import FailureConfig
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from tests.engine.remote.engine import AgentsEngine
from tests.train.trees.libraries import XGBOOST, Library, Notes, binary, both_libraries, killed
from tools.hosts import Hosts

pytestmark = pytest.mark.timeout(300)


@both_libraries
def test_the_model_is_that_of_one_machine(library: Library, hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    expected = library.trainer(binary(), storage_path=str(tmp_path)).fit()
    result = library.trainer(binary(), storage_path=str(tmp_path), engine=hosts_engine).fit()
    check_run(result.path, result=result, iterations=10, attempts=1)
    assert library.model_text(result.checkpoint) == library.model_text(expected.checkpoint)
    assert result.metrics[library.key(binary())] == pytest.approx(expected.metrics[library.key(binary())])


@both_libraries
@pytest.mark.slow
def test_three_workers_on_two_hosts(library: Library, hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    """Two of them share a host, and reach each other at its address."""
    expected = library.trainer(binary(), workers=3, storage_path=str(tmp_path)).fit()
    result = library.trainer(binary(), workers=3, storage_path=str(tmp_path), engine=hosts_engine).fit()
    assert library.model_text(result.checkpoint) == library.model_text(expected.checkpoint)


@both_libraries
@pytest.mark.slow
def test_a_killed_worker_is_named_and_training_continues(
    library: Library, own_hosts: Callable[..., Hosts], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marks = Marks(tmp_path / "marks")
    kill = Notes(str(marks.directory), at=4, rank=1, do=killed)
    with contextlib.closing(AgentsEngine(hosts=own_hosts(2, marks.directory))) as engine:
        result = library.trainer(
            binary(),
            storage_path=str(tmp_path / "results"),
            engine=engine,
            verbose=1,
            callbacks=[library.before_rounds(kill)],
            failure_config=FailureConfig(max_failures=1),
        ).fit()
    check_run(result.path, result=result, iterations=10, attempts=2)
    assert re.search(r"rank 1: the process was killed by SIGKILL.* \(on h2, 10\.231\.0\.2\)", capfd.readouterr().out)
    expected = library.trainer(binary(), storage_path=str(tmp_path / "results")).fit()
    assert library.model_text(result.checkpoint) == library.model_text(expected.checkpoint)


@pytest.mark.slow
def test_data_outside_of_memory_is_on_the_worker_s_own_disk(hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    entries = {name: {"external_memory": True} for name in ("train", "valid")}
    expected = XGBOOST.trainer(binary(), dmatrix_params=entries, storage_path=str(tmp_path)).fit()
    result = XGBOOST.trainer(binary(), dmatrix_params=entries, storage_path=str(tmp_path), engine=hosts_engine).fit()
    assert XGBOOST.model_text(result.checkpoint) == XGBOOST.model_text(expected.checkpoint)
    assert not list(Path(result.path).glob("**/.xgboost-*"))
