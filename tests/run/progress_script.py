"""A driver that shows a run: python progress_script.py FILE, which it writes when it is done."""

import sys
from pathlib import Path

from paceline.air.result import Result
from paceline.run.observers import make_progress
from paceline.run.spec import Trial

if sys.stdout.isatty():
    from paceline.run import live_display

    live_display.DRAW_INTERVAL_S = 0  # every row is drawn
progress = make_progress(3)
progress.started(Trial("4913f_00000", "TorchTrainer", "/results/run", "e1"), "/results/run", 2)
if not sys.stdout.isatty():
    sys.stdin.readline()
for i in range(1, 200):
    progress.row({"loss": 1 / i, "training_iteration": i, "te\x1b[2Jxt": "\x1b[31mvalue"})
    progress.output(i % 2, f"worker line {i}\n\x1b]0;retitled\x07\x1b[2Jclear\n")
progress.output(1, "x" * 5000)
progress.output(1, "x" * 5000)
progress.output(1, "xEND\nafter the long line\n")
if sys.stdout.isatty():
    print("a user's own print")
progress.checkpoint(7, "/results/run/checkpoint_000007")
progress.attempt_failed("rank 1 was killed by SIGKILL", retry=True, charged=True)
progress.row({"loss": 0.125, "training_iteration": 200})
progress.tick()
progress.warning("look [bold]out[/bold] :smile:")
progress.finished(Result(metrics={"loss": 0.125, "accuracy": 0.75, "training_iteration": 200}))
progress.close()
Path(sys.argv[1]).write_text("done")
