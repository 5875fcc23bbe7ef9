"""Every PyTorch example runs and prints what it says."""

from __future__ import annotations

import contextlib
import runpy
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):
    import sklearn  # noqa: F401  # sets variables of the environment on import, which no single test shall be blamed for

EXAMPLES = Path(__file__).parents[3] / "examples"

EXPECTED = {
    "data_to_torch": ["epoch 7: ", "test accuracy: 9"],
    "torch_checkpoints": ["epoch 3, checkpoint id 3", "/checkpoint_000003"],
    "torch_fsdp": ["each worker held 577 of 1153 parameters", "has all of them: 1153"],
    "torch_metrics": ["rank 0: last batch", "rank 1: last batch"],
    "torch_mixed_precision": ["outputs in torch.bfloat16"],
    "torch_profiler": ["rank_0/pytorch_profiler/rank_0_000000.pt.trace.json", "rank_1/pytorch_profiler/rank_1_000000"],
    "torch_reproducibility": ["the same"],
    "torch_sharded": ["step 79 on 3 workers; one process has a model that is good"],
    "torch_retry": ["started_at"],
}


def test_no_example_is_forgotten() -> None:
    found = {path.stem for pattern in ("torch_*.py", "data_*.py") for path in EXAMPLES.glob(pattern)}
    assert found == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "data_to_torch":
        pytest.importorskip("sklearn")  # where its rows come from
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for text in EXPECTED[name]:
        assert text in printed
