"""The example runs and prints what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import sklearn  # noqa: F401  # sets variables of the environment on import, which no single test shall be blamed for

EXAMPLE = Path(__file__).parents[3] / "examples" / "sklearn_trainer.py"


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    for text in ("validation: accuracy 0.9", "cross-validation: accuracy 0.9", "predictions_1"):
        assert text in printed
