"""What installed packages register by entry points is found where a name is unknown, and only then."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.config import RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.air.plugins import plugin, plugin_names
from paceline.air.settings import restored, stored
from paceline.engine.choose import choose_engine, shutdown
from paceline.run.callbacks import Callback
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.predictor import predictor_for
from paceline.tune.by_name import create_scheduler, create_searcher

CODE = """
from dataclasses import dataclass

from paceline.air.checkpoint import Checkpoint
from paceline.engine.inline import InlineEngine
from paceline.run.backend import Backend, BackendConfig
from paceline.train.predictor import Predictor
from paceline.tune import Callback
from paceline.tune.schedulers import FIFOScheduler
from paceline.tune.search import BasicVariantGenerator


class GridBackend(Backend):
    pass


@dataclass
class GridConfig(BackendConfig):
    @property
    def backend_cls(self):
        return GridBackend


class GridCheckpoint(Checkpoint):
    pass


class PlainCheckpoint(Checkpoint):
    pass


class OddCheckpoint(Checkpoint):
    pass


class GridPredictor(Predictor):
    pass


class GridSearch(BasicVariantGenerator):
    pass


class GridEngine(InlineEngine):
    name = "grid"


class GridTracker(Callback):
    pass


class GridScheduler(FIFOScheduler):
    pass
"""
ENTRY_POINTS = """
[paceline.backends]
grid = gridlib:GridConfig
odd = gridlib:GridBackend
gone = gridlib:Gone

[paceline.engines]
grid = gridlib:GridEngine
odd = gridlib:GridTracker

[paceline.predictors]
gridlib.GridCheckpoint = gridlib:GridPredictor
gridlib.OddCheckpoint = gridlib:GridBackend

[paceline.searchers]
grid = gridlib:GridSearch

[paceline.schedulers]
grid = gridlib:GridScheduler

[paceline.trackers]
grid = gridlib:GridTracker
"""


def install(site: Path, name: str, code: str, entry_points: str) -> None:
    """A package as pip would leave it in a directory."""
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def gridlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    install(tmp_path, "gridlib", CODE, ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "gridlib"
    sys.modules.pop("gridlib", None)


def no_op() -> None: ...


def test_a_backend_by_its_name(gridlib: str) -> None:
    trainer = DataParallelTrainer(no_op, backend_config="grid")
    assert type(trainer.backend_config).__name__ == "GridConfig"


def fails() -> None:
    raise ValueError("no such column")


def test_a_backend_given_by_its_name_is_brought_back_with_a_run(gridlib: str) -> None:
    inline = RunConfig(engine="inline", verbose=0)
    trainer = DataParallelTrainer(
        fails, backend_config="grid", scaling_config=ScalingConfig(num_workers=1), run_config=inline
    )
    assert list(trainer.to_run_spec().again) == ["train_loop_per_worker=..."]
    path = trainer.fit(raise_on_error=False).path
    restored = DataParallelTrainer.restore(path, no_op)
    assert type(restored.backend_config).__name__ == "GridConfig"


def test_a_searcher_a_scheduler_and_a_tracker_by_their_names(gridlib: str) -> None:
    assert type(create_searcher("grid")).__name__ == "GridSearch"
    assert type(create_scheduler("grid")).__name__ == "GridScheduler"
    (tracker,) = RunConfig(callbacks=["grid"]).callbacks
    assert type(tracker).__name__ == "GridTracker"


def test_a_tracker_is_stored_by_its_name(gridlib: str) -> None:
    settings = stored(RunConfig(callbacks=["grid", Callback()]))
    assert settings["callbacks"] == ["grid"]
    (tracker,) = restored(RunConfig, settings).callbacks
    assert type(tracker).__name__ == "GridTracker"


def test_an_engine_by_its_name(gridlib: str) -> None:
    assert RunConfig(engine="grid").engine == "grid"
    try:
        engine = choose_engine("grid")
        assert engine.name == "grid"
        assert choose_engine("grid") is engine
        with pytest.raises(ConfigError, match=r"'odd'.*Engine"):
            choose_engine("odd")
        with pytest.raises(ConfigError, match=r"'gird'.*'local', 'inline', 'ray', 'grid', 'odd'"):
            RunConfig(engine="gird")
    finally:
        shutdown()


def test_a_predictor_by_the_class_of_the_checkpoint_loaded_or_stored(gridlib: str, tmp_path: Path) -> None:
    import gridlib as module  # type: ignore[import-not-found]

    checkpoint = module.GridCheckpoint.from_dict({"weights": 1})
    assert predictor_for(checkpoint) is module.GridPredictor
    path = checkpoint.to_directory(tmp_path / "checkpoint")
    assert predictor_for(Checkpoint.from_directory(path)) is module.GridPredictor


def test_the_key_of_a_predictor_is_named_and_what_it_stands_for_is_checked(gridlib: str) -> None:
    import gridlib as module

    with pytest.raises(ConfigError, match=r"paceline\.predictors.*'gridlib\.PlainCheckpoint'"):
        predictor_for(module.PlainCheckpoint.from_dict({"weights": 1}))
    with pytest.raises(ConfigError, match=r"'gridlib\.OddCheckpoint' of paceline\.predictors.*not a Predictor class"):
        predictor_for(module.OddCheckpoint.from_dict({"weights": 1}))


def test_unknown_names_are_answered_with_what_there_is(gridlib: str) -> None:
    with pytest.raises(ConfigError, match=r"'girt'.*grid"):
        DataParallelTrainer(no_op, backend_config="girt")
    with pytest.raises(ConfigError, match=r"no searcher 'grit'.*did you mean grid"):
        create_searcher("grit")
    with pytest.raises(ConfigError, match=r"'gird'.*no tracker.*grid"):
        RunConfig(callbacks=["gird"])


def test_what_does_not_fit_is_refused(gridlib: str) -> None:
    with pytest.raises(ConfigError, match=r"gridlib:Gone.*Gone"):
        DataParallelTrainer(no_op, backend_config="gone")
    with pytest.raises(ConfigError, match=r"'odd'.*BackendConfig"):
        DataParallelTrainer(no_op, backend_config="odd")


def test_two_packages_with_one_name_are_told_apart_by_the_user(gridlib: str, tmp_path: Path) -> None:
    install(tmp_path, "otherlib", CODE, "[paceline.searchers]\ngrid = otherlib:GridSearch\n")
    with pytest.raises(ConfigError, match="gridlib and otherlib both register 'grid'"):
        create_searcher("grid")


def test_there_are_none_here() -> None:
    assert plugin_names("backends") == []
    assert plugin("searchers", "random") is None


def test_nothing_is_looked_up_for_known_names(gridlib: str, tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import importlib.metadata, sys
        sys.path.insert(0, {str(tmp_path)!r})
        def refuse(**selection):
            raise AssertionError("looked up")
        importlib.metadata.entry_points = refuse
        from paceline import train, tune
        from paceline.train.torch import TorchTrainer
        tune.create_searcher("random"), tune.create_scheduler("asha"), train.RunConfig()
        assert "gridlib" not in sys.modules
    """)
    subprocess.run([sys.executable, "-c", program], check=True)
