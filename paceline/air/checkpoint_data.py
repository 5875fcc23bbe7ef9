"""Where the workers were in their datasets when a checkpoint was reported: a small file beside its content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paceline.air.constants import CHECKPOINT_DATA_FILE
from paceline.air.errors import CheckpointCorruptError

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint


def data_state_of(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Dataset name -> stored position; None if the checkpoint was reported without datasets."""
    if checkpoint._data_state is not None:
        return dict(checkpoint._data_state)
    content = checkpoint._read_file(CHECKPOINT_DATA_FILE)
    if content is None:
        return None
    try:
        state = json.loads(content)
    except ValueError as error:
        raise CheckpointCorruptError(f"{CHECKPOINT_DATA_FILE} of {checkpoint!r} is damaged: {error}.") from error
    if not isinstance(state, dict):
        raise CheckpointCorruptError(f"{CHECKPOINT_DATA_FILE} of {checkpoint!r} holds no JSON object.")
    return state
