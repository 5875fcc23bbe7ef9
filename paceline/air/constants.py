"""Names that several parts agree on: dataset keys, metric keys, file names."""

from __future__ import annotations

TRAIN_DATASET_KEY = "train"
EVALUATION_DATASET_KEY = "evaluation"
MODEL_KEY = "model"
PREPROCESSOR_KEY = "_preprocessor"
TIMESTAMP_KEY = "_timestamp"
CHECKPOINT_ID_KEY = "_current_checkpoint_id"
ADDED_BY_TO_DICT = frozenset([PREPROCESSOR_KEY, TIMESTAMP_KEY, CHECKPOINT_ID_KEY])
"""What `Checkpoint.to_dict()` adds to the user's items after a report."""
TRAINING_ITERATION = "training_iteration"
TIME_TOTAL_S = "time_total_s"
DONE = "done"
"""True in a row says that the trial has nothing more to do."""
DEFAULT_METRIC = "_metric"
"""The name of a number that a trial reports, returns or yields without a name."""
TENSOR_COLUMN_NAME = "__value__"
MAX_REPR_LENGTH = 120
TRIAL_INDEX = "__trial_index__"
"""The key under which a configuration says which of its repetitions a trial is: 0, 1, ..."""

ORIGINAL_DIRECTORY_VARIABLE = "TUNE_ORIG_WORKING_DIR"
"""By this name programs find the directory that the driver was started in: workers are in another one."""

EXPR_RESULT_FILE = "result.json"
EXPR_PROGRESS_FILE = "progress.csv"
EXPR_PARAM_FILE = "params.json"
EXPR_ERROR_FILE = "error.txt"
OLDER_LOG_SUFFIX = ".1"

DICT_CHECKPOINT_FILE = "dict_checkpoint.pkl"
CHECKPOINT_METADATA_FILE = ".metadata.json"
CHECKPOINT_PREPROCESSOR_FILE = ".preprocessor.json"
CHECKPOINT_DATA_FILE = ".data_state.json"
CHECKPOINT_MANIFEST_FILE = "MANIFEST.json"

VALIDATION = "validation"
"""The key of a row below which the metrics of its checkpoint's validation are."""

AUTOFILLED_KEYS = frozenset(
    [
        TRAINING_ITERATION,
        "time_this_iter_s",
        TIME_TOTAL_S,
        "timestamp",
        "date",
        DONE,
        "trial_id",
        "experiment_id",
        "experiment_tag",
        "hostname",
        "node_ip",
        "pid",
        "config",
        "time_since_restore",
        "iterations_since_restore",
        "timesteps_total",
        "timesteps_since_restore",
        "episodes_total",
        "warmup_time",
        "_timestamp",
        "_time_this_iter_s",
        "_training_iteration",
    ]
)
"""Keys of a row that are filled in beside what the user reported."""
