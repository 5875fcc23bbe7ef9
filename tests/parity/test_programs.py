"""Whole programs as users of Ray write them run unchanged through the alias, and after `paceline port`."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.main import main

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]

QUICK = {
    "class_trainable": "by hand: 1.0 2",
    "custom_backend": "size: 2 has a port: True",
    "custom_logger": "iterations: [3, 5] 8",
    "data_pipeline": "mean of key 0: 249.0 max: 249001.0",
    "optuna_search": "trials: 4 gains: True",
    "pbt_function": "trials: 4 score is high: True True",
    "predictor_subclass": "predictions: [1.0, 4.0, 7.0] of 20 and 13.0",
    "resume_from_checkpoint": "total: 15 iterations: 2",
    "tune_run_analysis": "best height: -50 depth is whole: True",
    "xgboost_batch_prediction": "accuracy above 0.9: True",
}
# A framework that takes seconds to import, in every process of the program
HEAVY = {
    "accelerate_loop": "processes: 2 losses: 2",
    "actors_map_batches": "rows: 200 words: 3 total: 6400.0",
    "air_text_classification": "accuracy at the end: 1.0",
    "asha_torch_trainer": "some trial was stopped early: True",
    "keras_tensorflow": "columns of predictions: ['predictions'] (1,)",
    "lightgbm_tuned": "best learning rate: 0.3",
    "lightning_digits": "loaded model is good: True",
    "sklearn_cross_validation": "RandomForestClassifier test accuracy above 0.8: True",
    "tabular_preprocessors": "learned: True",
    "torch_digits": "restored model is good: True",
    "train_two_zero": "epochs: 2 4",
    "trainer_restore": "started again at: 2 ended at: 3",
    "transformers_tiny": "epoch: 2.0 labels: 2",
    "tune_checkpoint_dir": "Best trial test set accuracy is good: True",
}
EXPECTED = QUICK | HEAVY

each_program = pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(300)]) for name in HEAVY)]
)


def test_every_program_is_run() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(EXPECTED)


@each_program
def test_a_program_runs_unchanged(name: str, tmp_path: Path) -> None:
    check_output(name, tmp_path, "-m", "paceline.ray", str(PROGRAMS / f"{name}.py"))


@each_program
def test_a_program_runs_after_paceline_port(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / f"{name}.py"
    script.write_bytes((PROGRAMS / script.name).read_bytes())
    assert main(["port", "--write", str(script)]) == 0
    assert "Without a counterpart" not in capsys.readouterr().out
    assert "ray" not in set(imported_packages(script.read_text()))
    check_output(name, tmp_path, str(script))


def check_output(name: str, directory: Path, *arguments: str) -> None:
    environment = os.environ | {
        "HOME": str(directory),
        "PACELINE_RESULTS_DIR": str(directory / "results"),
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert EXPECTED[name] in run.stdout.splitlines(), run.stdout + run.stderr


def imported_packages(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]
