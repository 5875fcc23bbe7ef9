"""Where an attempt takes up the work, and what its sessions are told about it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.air.attachment import Attachment
from paceline.air.checkpoint import Checkpoint
from paceline.air.manifest import seal
from paceline.engine.places import WorkerPlace
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.history import node_ip
from paceline.run.messages import SessionSetup
from paceline.run.rank_target import packed_in_memory
from paceline.run.records import AttemptStarted
from paceline.run.spec import RunSpec, Trial


@dataclass(frozen=True)
class StartPoint:
    """The state of a run when an attempt starts."""

    index: int = 0
    """Iterations that are done."""
    time_s: float = 0.0
    """Training time that was spent on them."""
    checkpoint_number: int | None = None
    path: str | None = None
    uri: str | None = None
    in_memory: Attachment | None = None
    data: Mapping[str, Any] | None = None
    """Where the ranks were in their datasets."""


def from_own_checkpoint(keeper: CheckpointKeeper) -> StartPoint | None:
    """After the newest checkpoint of the run itself that is sound; None if there is none."""
    newest = keeper.newest_valid()
    if newest is None:
        return None
    path = None if keeper.in_memory else str(keeper.run_dir.checkpoint(newest.number))
    return StartPoint(
        index=newest.iteration,
        time_s=_seconds(newest.row.get("time_total_s")),
        checkpoint_number=newest.number,
        path=path,
        in_memory=keeper.newest_in_memory,
        data=newest.data if path is None else Checkpoint.from_directory(path).data_positions,
    )


def _seconds(value: object) -> float:
    # The user's own keys win in a row: this one may hold anything.
    return float(value) if isinstance(value, int | float) else 0.0


def from_given_checkpoint(checkpoint: Checkpoint | None) -> StartPoint:
    """At iteration 0 with the user's checkpoint at hand, if there is one.

    A checkpoint that is not a directory travels as an attachment.
    """
    if checkpoint is None:
        return StartPoint()
    data = checkpoint.data_positions
    if checkpoint.kind == "local_path":
        return StartPoint(path=checkpoint.path, data=data)
    if checkpoint.kind == "uri":
        return StartPoint(uri=checkpoint.uri, data=data)
    return StartPoint(in_memory=packed_in_memory(checkpoint), data=data)


_KNOWN_TO_THE_GROUP = dict.fromkeys(("world_rank", "world_size", "local_rank", "local_world_size", "node_rank"), 0)


def attempt_record(
    start: StartPoint, number: int, places: Sequence[WorkerPlace], pids: Mapping[int, int], warmup_s: float
) -> AttemptStarted:
    """What the journal says about an attempt; its rows are completed from it."""
    node = places[0].node
    return AttemptStarted(
        attempt=number,
        start_index=start.index,
        start_time_s=start.time_s,
        checkpoint=start.checkpoint_number,
        world_size=len(places),
        time=time.time(),
        warmup_time=warmup_s,
        hostname=node.hostname,
        node_ip=node_ip() if node.is_drivers else node.address,
        pid=pids.get(0, os.getpid()),
    )


def session_setup(
    spec: RunSpec,
    trial: Trial,
    keeper: CheckpointKeeper,
    start: StartPoint,
    *,
    decides: bool,
    data_state: Mapping[str, Any] | None = None,
) -> SessionSetup:
    """What every rank's session is told; the attempt adds which rank it is, and where."""
    config = spec.run_config.checkpoint_config
    factory = spec.scaling.as_placement_group_factory()
    path, uri, target = start.path, start.uri, keeper.target
    target.prepare(None if path is None else Path(path))
    if not target.shares_files:
        path = None
        uri = uri if start.checkpoint_number is None else target.uri_of(start.checkpoint_number)
    return SessionSetup(
        **_KNOWN_TO_THE_GROUP,
        trial_name=str(trial),
        trial_id=trial.trial_id,
        trial_dir=os.fsencode(trial.local_path if target.shares_files else os.path.basename(trial.local_path)),
        experiment_name=trial.experiment_name,
        resources={"bundles": factory.bundles, "strategy": factory.strategy},
        metadata=dict(spec.metadata),
        attempt=keeper.attempt,
        start_index=start.index,
        next_number=keeper.next_number,
        number_offset=_number_offset(spec, keeper) if spec.numbers_by_iteration else None,
        decides=decides,
        resume_path=None if path is None else os.fsencode(path),
        resume_seal=None if path is None else seal(Path(path)),
        resume_uri=uri,
        resume_in_memory=start.in_memory is not None,
        resume_relayed=path != start.path and uri is None,
        target=target.for_ranks(),
        async_save=config.async_save,
        keep_all_ranks=config.keep_all_ranks,
        score_attribute=config.checkpoint_score_attribute,
        output_files=spec.run_config.output_files,
        data_state=None if data_state is None else dict(data_state),
    )


def _number_offset(spec: RunSpec, keeper: CheckpointKeeper) -> int:
    """What to add to an iteration to get the number of its checkpoint: a resumed run numbers on."""
    if keeper.newest is not None:
        return keeper.newest.number - keeper.newest.iteration
    return (spec.resume_from.number or 0) if spec.resume_from is not None else 0
