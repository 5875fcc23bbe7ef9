"""Every program in examples/ runs unchanged on a Ray cluster, and prints what it prints on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_examples import EXPECTED as OTHERS
from tests.train.torch.test_examples import EXPECTED as OF_TORCH

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SECONDS = 300
SECONDS_OF_RLLIB = 900
SILENT = {"rl_trainer", "torch_reproducibility"}
"""Examples that show nothing of the run, and so no first line either."""
MARKS = {"rl_trainer": pytest.mark.skipif(find_spec("gymnasium") is None, reason="needs RLlib")}
EXPECTED = {
    **OTHERS,
    **OF_TORCH,
    "digits_demo": ["Resumed from that checkpoint", "went on at epoch 5"],
    "rl_trainer": ["in 10 episodes: "],
    "sklearn_trainer": ["validation: accuracy 0.9", "cross-validation: accuracy 0.9", "predictions_1"],
    "tensorflow_trainer": ["went on at epoch 3, loss 0.", "% of 360 test images right"],
}

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(SECONDS_OF_RLLIB + 30)]


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in EXPECTED])
def test_example(name: str, ray_cluster: Any, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PACELINE_ENGINE": "ray",
        "PACELINE_RESULTS_DIR": str(tmp_path / "results"),
        "PYTHONPATH": str(ROOT),
        "RAY_ADDRESS": ray_cluster.address,
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_OF_RLLIB if name == "rl_trainer" else SECONDS,
        check=False,
    )
    said = f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert done.returncode == 0, said
    assert name in SILENT or "(chosen by PACELINE_ENGINE)" in done.stdout + done.stderr, said
    for text in EXPECTED[name]:
        assert text in done.stdout, said
