"""The example runs and prints what it is about."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "tensorflow_trainer.py"


@pytest.mark.slow  # test_trainer.py fits and resumes too
def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "went on at epoch 3, loss 0." in printed
    assert "% of 360 test images right" in printed
