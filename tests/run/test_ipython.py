"""IPython in a terminal: the live picture of a terminal, and failures that show the user's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.terminal import Terminal

pytest.importorskip("IPython")

IMPORTS = "from paceline import train; from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig"
LOOP = "def train_loop(): print('in the worker'); train.report({'loss': 1}); raise ValueError('on purpose')"
FIT = (
    "DataParallelTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name='i')).fit()"
)


def test_a_failed_training(tmp_path: Path) -> None:
    with Terminal(["-m", "IPython", "--simple-prompt", "--no-banner"], columns=130, rows=50) as terminal:
        for number, line in enumerate((IMPORTS, LOOP + "\n", FIT), start=1):
            terminal.wait_for(f"In [{number}]:")
            terminal.press(line + "\n")
        terminal.wait_for("In [4]:")
        shown = terminal.text
        terminal.press("exit\n")
        assert terminal.finish() == 0
    assert ": starting 2 workers, files in " in shown
    assert "(rank 0) in the worker" in shown
    assert " failed after 1 iteration, " in shown
    assert " · " not in shown, "the picture is gone"
    raised = shown[shown.index("Traceback of rank") :]
    assert "Cell In[2], line 1, in train_loop" in raised
    assert "----> 1 def train_loop(): print('in the worker')" in raised
    assert "ValueError: on purpose" in raised
    assert "Called in Cell In[3], line 1: DataParallelTrainer(" in raised
    assert "base_trainer.py" not in raised
    assert "<div" not in shown
