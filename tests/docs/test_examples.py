"""The examples of tree models, tuning, prediction and serving run and print what they are about."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "accelerate_trainer": ["epochs of the second run: [4, 5, 6, 7], in bf16", "accuracy: 0.9"],
    "batch_prediction": [" of 797 images right, 8"],
    "horovod_trainer": ["epoch 1: loss 0.", "went on with epochs [2, 3]: loss 0.", " of 1797 digits right"],
    "lightgbm_trainer": [" rounds, mean error 5.", "city: ", "Leipzig"],
    "lightning_trainer": [
        "the second run trained epochs [3, 4, 5]",
        "best accuracy on validation rows: 0.9",
        " digits right",
    ],
    "serve_model": [
        "200: 0.0",
        "422: The columns do not fit the model in row 0; missing: 'sepal_length'",
        "checkpoint 5",
    ],
    "transformers_trainer": ["2 epochs: step 24, ", "went on with steps [36, 48, 60, 72, 84, 96]", "my dog eats meat"],
    "tune_digits": ["16 trials took ", " of 256 epochs", "which parameters mattered: "],
    "tune_population": ["learning rates [0.001, ", "after epoch 3, ", " took over from "],
    "tune_xgboost": ["rounds of the trials: [", " of 100 test rows right"],
    "xgboost_trainer": ["stored checkpoint_000010, checkpoint_000015", "went on at round 16, stopped after "],
}
TESTED_ELSEWHERE = ("torch_", "data_", "sklearn_", "digits_", "rl_", "tensorflow_", "jax_")
"""What their names begin with."""


def test_no_example_is_forgotten() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith(TESTED_ELSEWHERE)}
    assert found == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for text in EXPECTED[name]:
        assert text in printed
