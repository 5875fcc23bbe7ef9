"""Where the fault tests run their experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.testing.processes import Driver, Marks
from paceline.testing.scripts import Action
from tests.faults.search_programs import TunePlan

PROJECT = Path(__file__).parents[2]


@dataclass
class TuneLaboratory:
    """Runs experiments in drivers that can be killed."""

    root: Path

    def __post_init__(self) -> None:
        self.marks = Marks(self.root / "marks")
        self.storage = self.root / "storage"

    def plan(self, *actions: Action, **settings: Any) -> TunePlan:
        return TunePlan(storage=str(self.storage), marks=str(self.marks.directory), actions=actions, **settings)

    def drive(self, plan: TunePlan, env: Mapping[str, str] | None = None) -> Driver:
        """Run the plan in a driver process of its own."""
        number = len(list(self.root.glob("plan_*.json")))
        path = plan.save(self.root / f"plan_{number}.json")
        arguments = ["-m", "tests.faults.search_programs", str(path)]
        return Driver(arguments, output=self.root / f"driver_{number}.txt", env=env, cwd=PROJECT)

    @property
    def experiment(self) -> Path:
        """The directory of the one experiment."""
        (only,) = self.storage.iterdir()
        return only

    def outcome(self) -> dict[str, Any]:
        """What the newest driver said of its experiment."""
        return self.marks.read("outcome")[-1]
