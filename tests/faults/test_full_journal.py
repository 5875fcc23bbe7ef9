"""E2: the disk is full when rows are to be written."""

from __future__ import annotations

from tests.faults.laboratory import Laboratory
from tests.faults.private_mounts import MOUNT_TINY, needs

PROGRAM = """
import sys
from pathlib import Path
from paceline.air import Result
from paceline.air.errors import StorageError
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_run, committed_checkpoints, journal_records
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan, make_trainer, read_state

plan = ScriptPlan.load(sys.argv[1])
filler = Path(plan.storage, "filler")

class FillsTheDisk(Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if iteration == 42:
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass

try:
    make_trainer(plan, callbacks=[FillsTheDisk()]).fit()
except StorageError as error:
    told, result = error, error.result
(trial_dir,) = Path(plan.storage).glob("*/*")
check_run(trial_dir, attempts=1)  # nothing half-written is left, the journal ends with a whole record
rows = [record["index"] for record in journal_records(trial_dir) if record["kind"] == "row" and record["rank"] == 0]
saved = [read_state(path) for path in committed_checkpoints(trial_dir)]
found = Result.from_path(str(trial_dir))
loaded = [len(found.metrics_dataframe), read_state(Path(found.checkpoint.path))]
filler.unlink()
again = make_trainer(plan.continued(trial_dir)).fit()
check_run(trial_dir, result=again, iterations=plan.iterations, attempts=2)
Marks(plan.marks).say(
    "full", errno=told.errno, text=str(told), status=result.status, rows=rows, saved=saved, loaded=loaded
)
"""


def test_a_run_whose_journal_finds_the_disk_full_stops_and_can_be_continued(lab: Laboratory) -> None:
    """E2: fit() raises what the disk said, everything up to there is loadable, and restore() goes on from it."""
    needs(MOUNT_TINY, lab.storage)
    plan = lab.plan(iterations=79, every=40)
    with lab.program(PROGRAM, plan, prefix=(*MOUNT_TINY, str(lab.storage))) as driver:
        assert driver.wait() == 0
    (told,) = lab.marks.read("full")
    assert told["errno"] == 28
    assert "journal" in told["text"]
    assert "Free some space" in told["text"]
    assert told["status"] == "failed"
    assert told["rows"] == list(range(1, len(told["rows"]) + 1))
    assert told["saved"] == [40]
    assert told["loaded"] == [len(told["rows"]), 40]
    assert 40 <= len(told["rows"]) < 79
