"""The directory that a `transformers.Trainer` has saved a checkpoint to, complete for a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.air import session
from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    import transformers


def saved_checkpoint(args: transformers.TrainingArguments, state: transformers.TrainerState) -> Path:
    """What was saved at this step; every rank calls it.

    Ranks save to directories of their own, and only rank 0's is kept: the state of the random numbers of all
    ranks is brought there, so that a training goes on exactly.
    """
    folder = Path(args.output_dir or ".", f"checkpoint-{state.global_step}")
    folder.mkdir(parents=True, exist_ok=True)
    if args.world_size > 1 and not args.save_only_model:
        _collect_random_states(folder, args.process_index, args.world_size)
    if args.world_size > 1:
        import torch.distributed as dist

        dist.barrier()  # an output_dir may be that of all ranks: nobody reads it while another one writes
    return folder


def check_that_all_is_kept() -> None:
    """Where each rank saves its own part of a model, the files of rank 0 alone are no checkpoint."""
    from accelerate.state import AcceleratorState

    active = session.active()
    if active.world_size == 1 or active.keeps_all_ranks:
        return
    state = AcceleratorState()  # that of the trainer's Accelerator
    fsdp = getattr(state, "fsdp_plugin", None)
    by_fsdp = fsdp is not None and "FULL_STATE_DICT" not in str(fsdp.state_dict_type)
    if by_fsdp or getattr(state, "deepspeed_plugin", None) is not None:
        kind = "FSDP with a sharded state" if by_fsdp else "DeepSpeed"
        raise ConfigError(
            f"{kind}: every worker saves a part of the model and of the optimizer, and only the files of rank 0 would "
            "be kept. Use RunConfig(checkpoint_config=CheckpointConfig(keep_all_ranks=True))."
        )


def _collect_random_states(folder: Path, rank: int, workers: int) -> None:
    import torch.distributed as dist

    own = folder / f"rng_state_{rank}.pth"
    content = own.read_bytes() if own.exists() else None
    everyones: list[bytes | None] | None = [None] * workers if rank == 0 else None
    dist.gather_object(content, everyones, dst=0)
    for other, received in enumerate(everyones or []):
        if received is not None and other != rank:
            (folder / f"rng_state_{other}.pth").write_bytes(received)
