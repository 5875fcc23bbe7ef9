"""Where the fault tests run their plans."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig, ScalingConfig
from paceline.air.errors import TrainingFailedError
from paceline.air.result import Result
from paceline.testing.invariants import check_run
from paceline.testing.processes import Driver, Marks
from paceline.testing.scripts import Action, ScriptPlan, make_trainer
from paceline.train import BackendConfig, DataParallelTrainer


@dataclass
class Laboratory:
    """Runs plans and checks what they leave behind."""

    root: Path

    def __post_init__(self) -> None:
        self.marks = Marks(self.root / "marks")
        self.storage = self.root / "storage"

    def plan(self, *actions: Action, **settings: Any) -> ScriptPlan:
        return ScriptPlan(storage=str(self.storage), marks=str(self.marks.directory), actions=actions, **settings)

    def succeed(self, plan: ScriptPlan, *, attempts: int | None = None, **trainer: Any) -> Result:
        """fit() must reach the plan's end in so many attempts; in one if the run is new."""
        if attempts is None and plan.restore is None:
            attempts = 1
        result = make_trainer(plan, **trainer).fit()
        check_run(result.path, result=result, iterations=plan.iterations, attempts=attempts)
        return result

    def fail(
        self, plan: ScriptPlan, cause: Mapping[str, object], *, iterations: int | None = None, attempts: int = 1
    ) -> TrainingFailedError:
        """fit() must fail for this reason."""
        with pytest.raises(TrainingFailedError) as caught:
            make_trainer(plan).fit()
        error = caught.value
        assert error.result is not None
        check_run(error.result.path, error=error, cause=cause, iterations=iterations, attempts=attempts)
        return error

    def trainer(
        self,
        loop: Callable[..., Any],
        *,
        workers: int = 2,
        config: dict[str, Any] | None = None,
        backend: BackendConfig | None = None,
        **run_config: Any,
    ) -> DataParallelTrainer:
        """A trainer for a loop of the test's own; the loop finds the marks in its config, if it takes one."""
        if len(inspect.signature(loop).parameters) == 1:
            config = {"marks": str(self.marks.directory), **(config or {})}
        return DataParallelTrainer(
            loop,
            train_loop_config=config,
            backend_config=backend,
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(storage_path=str(self.storage), verbose=0, **run_config),
        )

    def failure_of(self, loop: Callable[..., Any], *, attempts: int = 1, **settings: Any) -> TrainingFailedError:
        """Train a loop of the test's own, which must fail."""
        with pytest.raises(TrainingFailedError) as caught:
            self.trainer(loop, **settings).fit()
        assert caught.value.result is not None
        check_run(caught.value.result.path, error=caught.value, attempts=attempts)
        return caught.value

    def drive(self, plan: ScriptPlan, env: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()) -> Driver:
        """Run the plan in a driver process of its own."""
        number = len(list(self.root.glob("plan_*.json")))
        path = plan.save(self.root / f"plan_{number}.json")
        return Driver(
            ["-m", "paceline.testing.scripts", str(path)],
            output=self.root / f"driver_{number}.txt",
            env=env,
            prefix=prefix,
        )

    def program(
        self,
        text: str,
        plan: ScriptPlan,
        *arguments: str,
        prefix: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Driver:
        """Run a program of the test's own in a driver process; its first argument is the file with the plan."""
        number = len(list(self.root.glob("program_*.py")))
        script = self.root / f"program_{number}.py"
        script.write_text(text)
        path = plan.save(self.root / f"program_{number}.json")
        output = self.root / f"program_{number}.txt"
        return Driver([str(script), str(path), *arguments], output=output, prefix=prefix, env=env)

    def trial_dirs(self) -> list[Path]:
        """Every trial directory, oldest first."""
        return sorted((path.parent for path in self.storage.glob("*/*/journal.jsonl")), key=os.path.getmtime)

    @property
    def trial_dir(self) -> Path:
        (only,) = self.trial_dirs()
        return only

    def outcome(self) -> dict[str, Any]:
        """What the newest driver said of its run."""
        return self.marks.read("outcome")[-1]
