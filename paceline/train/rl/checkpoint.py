"""RLCheckpoint: a trained RLlib algorithm as a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_trust import code_parts
from paceline.air.errors import CheckpointError, ConfigError
from paceline.train.rl.checkpoint_files import ALGORITHM_FILE, INFO_FILE, check_layout, chosen_module, is_needed

if TYPE_CHECKING:
    import torch

    from paceline.train.rl.policy import Policy

C = TypeVar("C", bound="RLCheckpoint")
MOST_SHOWN = 3


class RLCheckpoint(Checkpoint):
    """A checkpoint that holds an RLlib algorithm: the directory that its save_to_path() writes.

    RLlib stores policies as pickles, and reading a pickle runs the code in it. What a run of this program has
    trained is read without a question. For a checkpoint from elsewhere, `trust=True` says that you know where it comes
    from. Reading one neither needs nor starts Ray.
    """

    made_here = False
    """True for what a run of this program has just trained."""

    @classmethod
    def from_checkpoint(cls: type[C], other: Checkpoint) -> C:
        checkpoint = super().from_checkpoint(other)
        checkpoint.made_here = isinstance(other, RLCheckpoint) and other.made_here
        return checkpoint

    def get_policy(self, env: Any = None, *, policy_id: str | None = None, trust: bool = False) -> Policy:
        """A policy of the algorithm, which acts on observations.

        `policy_id` is needed where there are several policies and none of them is "default_policy". `env` is ignored:
        it was needed when policies did not know their spaces, and RLlib's modules do.
        """
        from paceline.train.rl.policy import Policy

        if trust not in (True, False, None):
            raise ConfigError(
                f"trust is {trust!r}: give True for a checkpoint that you trust. It cannot be limited to some types."
            )
        with self._directory(is_needed) as folder:
            check_layout(Path(folder), repr(self))
            chosen_module(Path(folder), policy_id, repr(self))
            if not (trust or self.made_here):
                self._refuse_pickles(folder)
            return Policy(folder, policy_id, place=repr(self))

    def check_continued_by(self, algorithm: str) -> None:
        """Refuse a checkpoint that an algorithm of this name cannot continue. Nothing is unpickled to find out."""
        if self.read_file(INFO_FILE) is None:
            raise CheckpointError(f"{self!r} is not an RLlib checkpoint: it has no file {INFO_FILE}.")
        content = self.read_file(ALGORITHM_FILE)  # what RLlib alone has saved is without
        name = algorithm if content is None else json.loads(content)["algorithm"]
        if name != algorithm:
            raise CheckpointError(
                f"{self!r} is a checkpoint of {name}, and cannot be continued with {algorithm}: pass "
                f"algorithm={name!r}, or start without a checkpoint."
            )

    def get_model(self, policy_id: str | None = None, *, trust: bool = False) -> torch.nn.Module:
        """The network of a policy: an RLModule, which is a torch.nn.Module."""
        model: torch.nn.Module = self.get_policy(policy_id=policy_id, trust=trust).model
        return model

    def _refuse_pickles(self, folder: str) -> None:
        parts = code_parts(Checkpoint.from_directory(folder))
        shown = ", ".join(parts[:MOST_SHOWN]) + (
            f" and {len(parts) - MOST_SHOWN} more" if len(parts) > MOST_SHOWN else ""
        )
        raise CheckpointError(
            f"{self!r} is not loaded: RLlib stores policies as pickles ({shown}), and reading a pickle runs whatever "
            "code is in it. If you know where the checkpoint comes from, pass trust=True to get_policy(), get_model() "
            "or RLPredictor.from_checkpoint()."
        )
