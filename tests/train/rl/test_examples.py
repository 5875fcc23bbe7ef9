"""The example of RLTrainer runs and prints a learning curve."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")
pytest.importorskip("paceline.train.rl.rllib")  # now: importing RLlib sets environment variables

from tests.train.rl.cartpole import RANDOM_RETURN

pytestmark = pytest.mark.rl

EXAMPLE = Path(__file__).parents[3] / "examples" / "rl_trainer.py"


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    rewards = [float(reward) for reward in re.findall(r"iteration +\d+ +([\d.]+)", printed)]
    assert rewards[-1] >= 150 > rewards[0]
    (reached,) = re.findall(r"in 10 episodes: (\d+)", printed)
    assert int(reached) > 3 * RANDOM_RETURN
