"""Old path of helpers for people who write trainables."""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

_VERBOSE = "RunConfig(verbose=0), 1, 2 or 3 says how much is printed"
_FILES = "RunConfig(storage_path=...) puts the results where you need them, and uploads them to remote storage"
_PICKLE = "cloudpickle.dumps() and base64 turn a function into text"
_TIME = "time.perf_counter() around the call measures it"
_ADVICE = {
    **dict.fromkeys(("Verbosity", "disable_ipython", "has_verbosity", "log", "set_verbosity"), _VERBOSE),
    **dict.fromkeys(("delete_on_node", "file_transfer", "sync_dir_between_nodes"), _FILES),
    **dict.fromkeys(("TuneFunctionDecoder", "TuneFunctionEncoder", "serialization"), _PICKLE),
    "Tee": "RunConfig(log_to_file=True) writes what a trial prints to files",
    "UtilMonitor": "psutil.cpu_percent() and nvidia-smi say how busy the machine is",
    "retry_fn": "FailureConfig(max_failures=...) repeats a failed trial",
    "validate_warmstart": "points_to_evaluate and evaluated_rewards of the searcher are checked when it is made",
    "warn_if_slow": _TIME,
}

with lazy_imports(__name__, advice=_ADVICE):
    from paceline.compat.tune_utils import date_str as date_str
    from paceline.compat.tune_utils import deep_update as deep_update
    from paceline.compat.tune_utils import diagnose_serialization as diagnose_serialization
    from paceline.compat.tune_utils import flatten_dict as flatten_dict
    from paceline.compat.tune_utils import merge_dicts as merge_dicts
    from paceline.compat.tune_utils import unflattened_lookup as unflattened_lookup
    from paceline.compat.tune_utils import validate_save_restore as validate_save_restore
    from paceline.compat.tune_utils import wait_for_gpu as wait_for_gpu
