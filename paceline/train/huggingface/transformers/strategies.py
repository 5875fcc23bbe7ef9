"""What a trainer's arguments must say so that each report has its metrics and its checkpoint together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    import transformers

_BEST = (
    "CheckpointConfig(num_to_keep=1, checkpoint_score_attribute='eval_loss', checkpoint_score_order='min') in the "
    "run's RunConfig keeps the best one, and result.best_checkpoints has it"
)


def check_strategies(args: transformers.TrainingArguments) -> None:
    """Refuse arguments with which logs, evaluations and checkpoints would not come together."""
    if args.load_best_model_at_end:
        raise ConfigError(
            "TrainingArguments(load_best_model_at_end=True): checkpoints belong to the run, which keeps them "
            f"elsewhere. Leave it out; {_BEST}."
        )
    logging = _name(args.logging_strategy)
    for setting in ("eval_strategy", "save_strategy"):
        chosen = _name(getattr(args, setting))
        if chosen == "best":
            raise ConfigError(
                f"TrainingArguments(save_strategy='best'): use save_strategy={logging!r}, as for logging_strategy. "
                f"{_BEST}."
            )
        if chosen not in ("no", logging):
            raise ConfigError(
                f"TrainingArguments({setting}={chosen!r}, logging_strategy={logging!r}): these must agree, because "
                f"what is logged, evaluated and saved is reported together. Use logging_strategy={chosen!r} or "
                f"{setting}={logging!r}."
            )
    if _name(args.eval_strategy) == "steps" and args.eval_steps != args.logging_steps:
        raise ConfigError(
            f"TrainingArguments(eval_steps={args.eval_steps}, logging_steps={args.logging_steps}): these must be "
            f"equal, because both are reported together. Use logging_steps={args.eval_steps}."
        )
    if _name(args.save_strategy) == "steps" and not _is_multiple(args.save_steps, args.logging_steps):
        raise ConfigError(
            f"TrainingArguments(save_steps={args.save_steps}, logging_steps={args.logging_steps}): save_steps must "
            "be a multiple of logging_steps, because a checkpoint goes with what is logged. Use "
            f"save_steps={_next_multiple(args.save_steps, args.logging_steps):.12g}."
        )


def check_rounded_steps(args: transformers.TrainingArguments, state: transformers.TrainerState) -> None:
    """Shares of the training become numbers of steps once its length is known, each rounded up by itself."""
    if _name(args.save_strategy) == "steps" and not _is_multiple(state.save_steps, state.logging_steps):
        raise ConfigError(
            f"TrainingArguments(save_steps={args.save_steps}, logging_steps={args.logging_steps}) are every "
            f"{state.save_steps} and every {state.logging_steps} of {state.max_steps} steps: save_steps must be a "
            "multiple of logging_steps, because a checkpoint goes with what is logged. Use "
            f"save_steps={_next_multiple(state.save_steps, state.logging_steps)} and "
            f"logging_steps={state.logging_steps}."
        )


def check_loading(args: transformers.TrainingArguments) -> None:
    """For trainers with datasets of the run."""
    if args.dataloader_num_workers > 0:
        raise ConfigError(
            f"TrainingArguments(dataloader_num_workers={args.dataloader_num_workers}): the datasets of a run are read "
            "ahead by threads, and cannot be read by other processes. Leave dataloader_num_workers out."
        )


def _name(strategy: object) -> str:
    return str(getattr(strategy, "value", strategy))


def _is_multiple(steps: float, of: float) -> bool:
    """Numbers below 1 are shares of the whole training."""
    if of <= 0 or (steps < 1) != (of < 1):
        return False
    times = steps / of
    return times >= 1 and abs(times - round(times)) < 1e-9


def _next_multiple(steps: float, of: float) -> float:
    if of <= 0 or (steps < 1) != (of < 1):
        return of
    return max(1, -(-steps // of)) * of
