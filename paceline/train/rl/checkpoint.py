"""RLCheckpoint: a trained RLlib algorithm as a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_trust import code_parts
from paceline.air.checks import near_miss
from paceline.air.errors import CheckpointError, ConfigError

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


# -- the files of a checkpoint ---------------------------------------------------------------------


INFO_FILE = "rllib_checkpoint.json"
ALGORITHM_FILE = "paceline_algorithm.json"
"""Which algorithm it is: RLlib does not look, and silently loads what happens to have the same name."""
MODULES = "learner_group/learner/rl_module"
CONSTRUCTOR_FILE = "class_and_ctor_args.pkl"
DEFAULT_POLICY = "default_policy"
RUNNERS = ("env_runner", ".", "eval_env_runner")
"""Where the connectors are: with the env runner of the algorithm's own process, or by themselves. An algorithm that
learns from stored data has only runners that evaluate."""


def is_needed(name: str) -> bool:
    """Whether a policy is made of this file; the rest is for training."""
    return (
        name.startswith((INFO_FILE, CONSTRUCTOR_FILE, MODULES))
        or "_connector/" in name
        or name.endswith("env_runner/state.pkl")
    )


def check_layout(folder: Path, place: str) -> None:
    """Refuse a directory that is not a checkpoint of RLlib's new API stack. Nothing is unpickled to find out."""
    info_file = folder / INFO_FILE
    if not info_file.exists():
        raise CheckpointError(
            f"{place} is not an RLlib checkpoint: it has no file {INFO_FILE}. RLTrainer and save_to_path() of an "
            "RLlib algorithm write such checkpoints."
        )
    try:
        info = json.loads(info_file.read_bytes())
        version = str(info.get("checkpoint_version", "unknown"))
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{place} is damaged: {INFO_FILE} cannot be read: {error}.") from error
    written_by = f"Ray {info.get('ray_version', '(unknown version)')}"
    if version.startswith(("0.", "1.")):
        raise CheckpointError(
            f"{place} was written by RLlib's old API stack (checkpoint format {version}, {written_by}), which has no "
            "RLModules. Train again with RLTrainer: it uses the new API stack."
        )
    if not version.startswith("2."):
        raise CheckpointError(
            f"{place} has the checkpoint format {version}, written by {written_by}. This program reads format 2.x: "
            "install the version of Ray that wrote it."
        )
    if not module_ids(folder):
        raise CheckpointError(f"{place} is damaged or incomplete: there is no policy in {MODULES}.")


def module_ids(folder: Path) -> list[str]:
    modules = folder / MODULES
    return sorted(each.name for each in modules.iterdir() if each.is_dir()) if modules.is_dir() else []


def chosen_module(folder: Path, policy_id: str | None, place: str) -> str:
    """The id of the policy that is meant: the only one, or "default_policy", unless one is named."""
    known = module_ids(folder)
    if policy_id is None:
        if len(known) == 1:
            return known[0]
        if DEFAULT_POLICY in known:
            return DEFAULT_POLICY
        raise ConfigError(f"{place} holds several policies: {', '.join(known)}. Choose one with policy_id=...")
    if policy_id not in known:
        raise ConfigError(f"{place} has no policy {policy_id!r}{near_miss(policy_id, known)}")
    return policy_id


def load_module(folder: Path, module_id: str, place: str) -> Any:
    """The policy's network, an RLModule. This unpickles."""
    return _load_part(folder / MODULES / module_id, place)


def load_connectors(folder: Path, place: str) -> tuple[Any, Any, int]:
    """The pipelines from the environment to the network and back, and how many steps were sampled; None: not stored.

    This unpickles.
    """
    for runner in RUNNERS:
        to_module, to_env = (folder / runner / f"{name}_connector" for name in ("env_to_module", "module_to_env"))
        if to_module.is_dir() and to_env.is_dir():
            state = folder / runner / "state.pkl"
            steps = _unpickled(state, place).get("num_env_steps_sampled_lifetime", 0) if state.exists() else 0
            return _load_part(to_module, place), _load_part(to_env, place), int(steps)
    return None, None, 0


def load_settings(folder: Path, place: str) -> dict[str, Any]:
    """The settings that the algorithm was built with. This unpickles."""
    args, kwargs = _unpickled(folder / CONSTRUCTOR_FILE, place)["ctor_args_and_kwargs"]
    config = kwargs["config"] if "config" in kwargs else args[0]
    return dict(config if isinstance(config, dict) else config.to_dict())


def _load_part(folder: Path, place: str) -> Any:
    # Not by from_checkpoint() of RLlib: where it cannot unpickle the class, it takes another one and only logs it.
    import pyarrow.fs

    described = _unpickled(folder / CONSTRUCTOR_FILE, place)
    try:
        args, kwargs = described["ctor_args_and_kwargs"]
        part = described["class"](*args, **kwargs)
        part.restore_from_path(str(folder.absolute()), filesystem=pyarrow.fs.LocalFileSystem())
    except Exception as error:
        raise _unreadable(folder, place, error) from error
    return part


def _unpickled(path: Path, place: str) -> Any:
    from paceline.train.rl import rllib  # noqa: F401, I001  (before anything of RLlib, which the pickle imports)
    import ray.cloudpickle

    try:
        with path.open("rb") as file:
            return ray.cloudpickle.load(file)
    except Exception as error:
        raise _unreadable(path, place, error) from error


def _unreadable(path: Path, place: str, error: Exception) -> CheckpointError:
    import ray

    root = next(each for each in path.parents if (each / INFO_FILE).exists())
    written_by = json.loads((root / INFO_FILE).read_bytes()).get("ray_version", "unknown")
    versions = (
        "" if written_by == ray.__version__ else f" Ray {written_by} wrote it, and this is Ray {ray.__version__}."
    )
    return CheckpointError(
        f"{place} cannot be loaded: {path.relative_to(root)}: {type(error).__name__}: {error}. It is damaged, or it "
        f"needs modules that are not installed here.{versions}"
    )
