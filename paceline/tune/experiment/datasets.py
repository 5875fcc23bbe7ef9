"""Datasets that several trials read are prepared once: listing, counting and fitting a preprocessor can take long."""

from __future__ import annotations

import copy
import dataclasses
import threading
from typing import Any

from paceline.data.ingest.request import Ingest
from paceline.run.data import RunData
from paceline.run.spec import RunSpec

_MOST_KEPT = 4
"""Kept preparations: each may hold rows in memory."""


class SharedDatasets:
    """What was prepared for earlier trials. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prepared: dict[Any, tuple[RunSpec, RunData | Exception]] = {}

    def prepared(self, spec: RunSpec) -> RunData | None:
        """The run's datasets, prepared now or for a run that had the very same ones; None for a run without."""
        if spec.ingest is None:
            return None
        key = (spec.world_size, *spec.ingest.identity())
        with self._lock:  # one at a time: the next run most likely needs the same
            if key not in self._prepared:
                while len(self._prepared) >= _MOST_KEPT:
                    self._prepared.pop(next(iter(self._prepared)))
                own = dataclasses.replace(spec, ingest=_with_own_preprocessor(spec.ingest))
                self._prepared[key] = (spec, _tried(own))  # with its owner: the key goes by identity
            prepared = self._prepared[key][1]
            if isinstance(prepared, Exception):
                raise prepared
            return prepared


def _tried(spec: RunSpec) -> RunData | Exception:
    """What cannot be prepared for one trial cannot be prepared for the next: it is not tried again."""
    try:
        return RunData.prepared(spec)
    except Exception as error:
        return error


def _with_own_preprocessor(ingest: Ingest) -> Ingest:
    """Fitting changes a preprocessor: trials with other datasets must find it as the user gave it."""
    return dataclasses.replace(ingest, preprocessor=copy.deepcopy(ingest.preprocessor))
