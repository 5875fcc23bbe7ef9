"""Workers read the files of datasets themselves: those on other machines must see them, and the same ones.

What they do not see is refused before the training starts, instead of in the middle of an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air.errors import DataError, DataNotFoundError

if TYPE_CHECKING:
    from paceline.data.ingest.prepared import PreparedDataset
    from paceline.engine.base import WorkerGroup
    from paceline.engine.places import Node

MOST_FILES = 1000
"""Of one dataset that are looked at: evenly spread, with the first and the last."""
WAYS_OUT = (
    "Workers read files themselves: put them on a path that all machines share, or into a store with a URI (such as "
    "s3://). What fits on the driver's disk can also be sent from there: dataset.materialize()."
)

Version = tuple[int, int] | None
"""Size and time of change in nanoseconds; None: there is no such file."""


@dataclass(frozen=True)
class _Looked:
    """What a machine sees of one file."""

    node: Node
    path: str
    there: Version
    here: Version


def check_seen(datasets: Mapping[str, PreparedDataset], group: WorkerGroup) -> None:
    """Raise DataError for a file that the driver sees and a machine with workers of the group does not."""
    elsewhere = {place.node: place.rank for place in reversed(group.places) if not place.node.is_drivers}
    if not elsewhere:
        return
    files = {name: _chosen(_on_disk(dataset)) for name, dataset in datasets.items()}
    paths = list(dict.fromkeys(path for chosen in files.values() for path in chosen))
    if not paths:
        return
    here = versions(paths)
    seen = dict(zip(elsewhere, group.execute(versions, paths, ranks=list(elsewhere.values())), strict=True))
    for name, chosen in files.items():
        wanted = set(chosen)
        for node, found in seen.items():
            looked = [
                _Looked(node, path, None if there is None else (there[0], there[1]), version)
                for path, there, version in zip(paths, found, here, strict=True)
                if path in wanted
            ]
            _refuse_other_files(name, [each for each in looked if each.there != each.here])


def versions(paths: Sequence[str]) -> list[Version]:
    """What this machine has under these paths."""
    return [_version(path) for path in paths]


def _version(path: str) -> Version:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _on_disk(dataset: PreparedDataset) -> list[str]:
    return [path for path in dataset.plan.input_files() if os.path.isabs(path)]


def _chosen(paths: Sequence[str]) -> list[str]:
    if len(paths) <= MOST_FILES:
        return list(paths)
    return [paths[index * (len(paths) - 1) // (MOST_FILES - 1)] for index in range(MOST_FILES)]


def _refuse_other_files(name: str, looked: Sequence[_Looked]) -> None:
    if not looked:
        return
    first = looked[0]
    host = f"{first.node.hostname} ({first.node.address})"
    more = f", nor {len(looked) - 1:,} more of its files" if len(looked) > 1 else ""
    if first.there is None:
        raise DataNotFoundError(f"dataset {name!r}: {host} does not see {first.path}{more}. {WAYS_OUT}")
    sizes = [0 if version is None else version[0] for version in (first.there, first.here)]
    raise DataError(
        f"dataset {name!r}: {host} has another version of {first.path} than the driver: {sizes[0]:,} bytes instead of "
        f"{sizes[1]:,}, or changed at another time. Copies must keep the times (rsync -a, cp -p). {WAYS_OUT}"
    )
