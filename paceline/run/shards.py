"""A rank's parts of the run's datasets, at the place where they are to be taken up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from paceline.run.messages import SessionSetup


def open_shards(packed: bytes, files: Sequence[int], setup: SessionSetup) -> dict[str, Any]:
    """Dataset name -> DataIterator of this rank; takes the files over."""
    from paceline.data.ingest.handover import unpack
    from paceline.data.ingest.states import state_for
    from paceline.data.iterator import DataIterator

    threads = max(1, len(os.sched_getaffinity(0)) // setup.local_world_size)
    shards = {}
    for name, dataset in unpack(packed, files).items():
        shard = DataIterator(dataset, setup.world_rank, setup.world_size, threads)
        stored = (setup.data_state or {}).get(name)
        state = None if stored is None else state_for(stored, setup.world_rank, setup.world_size)
        if state is not None:
            shard.load_state_dict(state)
        shards[name] = shard
    return shards
