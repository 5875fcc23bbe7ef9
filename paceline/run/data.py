"""What a run does with its datasets: prepares them once, hands them to every attempt, keeps their positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.run.spec import RunSpec

if TYPE_CHECKING:
    from paceline.data.ingest.handover import Parcel
    from paceline.data.ingest.prepared import PreparedDataset
    from paceline.run.data_positions import DataPositions


@dataclass
class RunData:
    """The datasets of one run, ready for its attempts; empty for a run without."""

    packed: Parcel | None = None
    preprocessor: Any = None
    notes: list[str] = field(default_factory=list)
    datasets: Mapping[str, PreparedDataset] = field(default_factory=dict)
    read_once: bool = False

    @classmethod
    def prepared(cls, spec: RunSpec) -> RunData:
        """Does what needs a look at all rows; errors in the data come out here, before there is a directory."""
        if spec.ingest is None:
            return cls()
        from paceline.data.ingest.handover import Parcel

        ready = spec.ingest.prepare(spec.world_size)
        return cls(
            packed=Parcel(ready.datasets) if ready.datasets else None,
            preprocessor=ready.preprocessor,
            notes=[*spec.ingest.notes, *ready.notes],
            datasets=ready.datasets,
            read_once=spec.ingest.read_once,
        )

    def positions(self, world_size: int, start_index: int) -> DataPositions | None:
        """Gathers where the ranks are, for one attempt."""
        if not self.datasets or self.read_once:
            return None
        from paceline.run.data_positions import DataPositions

        split = {name: dataset.split for name, dataset in self.datasets.items()}
        return DataPositions(world_size, start_index, split)

    def usable_state(self, stored: Mapping[str, Any] | None, warn: Callable[[str], None]) -> dict[str, Any] | None:
        """The positions of a checkpoint that fit the datasets there are; others are told and begun anew."""
        if not stored or not self.datasets or self.read_once:
            return None
        from paceline.data.ingest.prepared import problem_with

        usable = {}
        for name, state in stored.items():
            if name not in self.datasets:
                continue
            problem = problem_with(state, self.datasets[name])
            if problem is None:
                usable[name] = state
            else:
                warn(f"dataset {name!r} is read from its start, not from the checkpoint's position: {problem}.")
        return usable
