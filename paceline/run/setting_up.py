"""What a run is made of before its first attempt: the keeper of its checkpoints, and the view that observers get."""

from __future__ import annotations

from paceline.air.errors import RestoreError
from paceline.run.checkpoint_keeper import CheckpointKeeper
from paceline.run.history import lost_rows, missing_rows
from paceline.run.observers import Observers
from paceline.run.run_files import RunFiles
from paceline.run.spec import RunSpec
from paceline.run.trial import Trial


def make_keeper(spec: RunSpec, files: RunFiles) -> CheckpointKeeper:
    """With the checkpoints of an earlier driver, if the run is continued."""
    keeper = CheckpointKeeper(spec.run_config.checkpoint_config, files.run_dir, files.journal, files.mirror)
    keeper.warnings += files.warnings
    if files.records:
        if files.kept_in_memory and files.ended_as != "finished":
            raise RestoreError(
                "This run kept its checkpoints in memory only (num_to_keep=0); they went with its driver. "
                "Start it anew, and give num_to_keep another value to be able to restore."
            )
        keeper.load(files.records)
        lost = list(lost_rows(files.run_dir, keeper.committed, files.last_row))
        for row in lost:
            files.journal.append(row, finite=False)
        files.journal.sync()
        if keeper.newest is not None:
            indices = [*files.surviving, *(row.index for row in lost)]
            keeper.warnings += missing_rows(files.run_dir.journal, indices, keeper.newest.iteration)
    if keeper.next_number == 0 and spec.resume_from is not None:
        keeper.continue_after(spec.resume_from)
    return keeper


def own_observers(spec: RunSpec, files: RunFiles) -> Observers:
    """Those of a run that is alone."""
    identity = files.identity
    trial = Trial(
        trial_id=identity.trial_id,
        trainable_name=spec.trainer_name,
        local_path=str(files.run_dir.root),
        experiment_id=identity.experiment_id,
        experiment_name=files.experiment_name,
        experiment_tag=identity.experiment_tag,
        config=dict(spec.config),
        evaluated_params=dict(spec.evaluated),
    )
    return Observers(spec.run_config, trial, files.run_dir, spec.world_size)
