"""Nothing is loaded that is not used. The seconds are rows of `make bench`: `plain-fit`, `imports`, `torch-fit`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.test_imports import HEAVY

LOADED = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
PLAIN_FIT = """
from paceline.air import RunConfig, ScalingConfig, session
from paceline.train import DataParallelTrainer
DataParallelTrainer(
    lambda: session.report({"loss": 1.0}),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(verbose=0),
).fit()
"""


@pytest.mark.parametrize(
    ("program", "needed"),
    [("import paceline", set()), ("import paceline.train", set()), (PLAIN_FIT, {"cloudpickle", "xxhash"})],
    ids=["import", "train", "fit"],
)
def test_a_program_loads_only_what_it_uses(program: str, needed: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", program + "\n" + LOADED], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded & HEAVY <= needed
