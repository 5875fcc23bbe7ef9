"""A rank's parts of the run's datasets, at the place where they are to be taken up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.resources import usable_cores
from paceline.run.messages import SessionSetup

if TYPE_CHECKING:
    from paceline.data.ingest.handover import Parcel


def open_shards(packed: Parcel, setup: SessionSetup) -> dict[str, Any]:
    """Dataset name -> DataIterator of this rank."""
    from paceline.data.ingest.prepared import state_for
    from paceline.data.iterator import DataIterator

    threads = max(1, usable_cores() // setup.local_world_size)
    shards = {}
    for name, dataset in packed.unpack().items():
        shard = DataIterator(dataset, setup.world_rank, setup.world_size, threads)
        stored = (setup.data_state or {}).get(name)
        state = None if stored is None else state_for(stored, setup.world_rank, setup.world_size)
        if state is not None:
            shard.load_state_dict(state)
        shards[name] = shard
    return shards
