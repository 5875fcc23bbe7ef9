"""`setup_wandb`: a Weights & Biases run inside of a worker, for the user's own calls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from paceline.trackers.wandb import FINISH_S, GROUP_VARIABLE, PROJECT_VARIABLE, is_offline_mode, key_in, settings
from paceline.trackers.worker import Place, at_end, split_config

__all__ = ["setup_wandb"]


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Start a W&B run in this worker, with `config` as its configuration, and return it.

    With `rank_zero_only`, the other ranks get a disabled run, which accepts every call and does nothing. Id, name and
    group are those of the trial and its experiment unless `kwargs` say otherwise, which are arguments of `wandb.init`.
    After a retry, the same run is continued. No key is needed with ``mode="offline"``.
    """
    import wandb

    place = Place.here()
    if rank_zero_only and place.rank != 0:
        return wandb.init(mode="disabled", reinit="create_new")
    _leave_service_of_driver()
    shown, older = split_config(config, "wandb")
    key = key_in(api_key or older.pop("api_key", None), api_key_file or older.pop("api_key_file", None))
    given = {
        "id": place.trial_id,
        "name": place.trial_name,
        "project": os.environ.get(PROJECT_VARIABLE),
        "group": os.environ.get(GROUP_VARIABLE) or place.experiment_name,
        "reinit": "create_new",
        "allow_val_change": True,
        "config": shown,
        **older,
        **kwargs,
        "settings": settings(kwargs.get("settings"), key, FINISH_S),
    }
    if not is_offline_mode(given):
        given.setdefault("resume", "allow")
    run = wandb.init(**given)
    if place.key is not None:
        at_end(partial(_finish, run))
    return run


def _finish(run: Any, failed: bool) -> None:
    """Workers end without W&B's own hook for that. Finishing twice is fine."""
    run.finish(exit_code=int(failed))


def _leave_service_of_driver() -> None:
    """A driver that tracks with W&B names its helper process in the environment: a worker starts one of its own."""
    if f"-{os.getpid()}-" not in os.environ.get("WANDB_SERVICE", ""):
        os.environ.pop("WANDB_SERVICE", None)
