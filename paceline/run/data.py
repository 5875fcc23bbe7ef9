"""What a run does with its datasets: prepares them once, hands them to every attempt, keeps their positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.run.spec import RunSpec

if TYPE_CHECKING:
    from paceline.run.data_positions import DataPositions


@dataclass
class RunData:
    """The datasets of one run, ready for its attempts; empty for a run without."""

    packed: bytes | None = None
    files: Sequence[int] = ()
    """Descriptors that belong to `packed`; they live as long as `owner`."""
    preprocessor: Any = None
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and blocks of each dataset."""
    split: dict[str, bool] = field(default_factory=dict)
    owner: Any = None

    @classmethod
    def prepared(cls, spec: RunSpec) -> RunData:
        """Does what needs a look at all rows; errors in the data come out here, before there is a directory."""
        if spec.ingest is None:
            return cls()
        from paceline.data.ingest.handover import Parcel

        ready = spec.ingest.prepare(spec.world_size)
        parcel = Parcel(ready.datasets)
        return cls(
            packed=parcel.content,
            files=parcel.descriptors,
            preprocessor=ready.preprocessor,
            notes=ready.notes,
            sizes={name: (dataset.rows, dataset.blocks) for name, dataset in ready.datasets.items()},
            split={name: dataset.split for name, dataset in ready.datasets.items()},
            owner=parcel,
        )

    def positions(self, world_size: int, start_index: int) -> DataPositions | None:
        """Gathers where the ranks are, for one attempt."""
        if not self.split:
            return None
        from paceline.run.data_positions import DataPositions

        return DataPositions(world_size, start_index, self.split)

    def usable_state(self, stored: Mapping[str, Any] | None, warn: Callable[[str], None]) -> dict[str, Any] | None:
        """The positions of a checkpoint that fit the datasets there are; others are told and begun anew."""
        if not stored or not self.sizes:
            return None
        from paceline.data.ingest.states import problem_with

        usable = {}
        for name, state in stored.items():
            if name not in self.sizes:
                continue
            problem = problem_with(state, *self.sizes[name])
            if problem is None:
                usable[name] = state
            else:
                warn(f"dataset {name!r} is read from its start, not from the checkpoint's position: {problem}.")
        return usable
