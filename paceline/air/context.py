"""TrainContext: the facts about this worker as one object, for ``train.get_context()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air import session
from paceline.air.storage_context import StorageContext

if TYPE_CHECKING:
    from paceline.air.resources import PlacementGroupFactory


CALLED_AS = "train.get_context()"


class TrainContext:
    """What this worker is and which run it belongs to; outside a run, the defaults."""

    def get_world_size(self) -> int:
        return session.get_world_size()

    def get_world_rank(self) -> int:
        return session.get_world_rank()

    def get_local_rank(self) -> int:
        return session.get_local_rank()

    def get_local_world_size(self) -> int:
        return session.get_local_world_size()

    def get_node_rank(self) -> int:
        return session.get_node_rank()

    def get_trial_name(self) -> str | None:
        return session.get_trial_name()

    def get_trial_id(self) -> str | None:
        return session.get_trial_id()

    def get_trial_dir(self) -> str | None:
        return session.get_trial_dir()

    def get_trial_resources(self) -> PlacementGroupFactory | None:
        return session.get_trial_resources()

    def get_experiment_name(self) -> str | None:
        return session.get_experiment_name()

    def get_metadata(self) -> dict[str, Any] | None:
        return session.get_metadata()

    def get_storage(self) -> StorageContext | None:
        """Where the results of this run are; None outside a run."""
        trial_dir, name = session.get_trial_dir(), session.get_experiment_name()
        return None if trial_dir is None else StorageContext(trial_dir, name or "")


_context = TrainContext()


def get_context() -> TrainContext:
    """The context of this worker; may be called anywhere and kept."""
    return _context
