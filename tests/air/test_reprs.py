"""A Result and a Checkpoint in a notebook: what they say, what they escape, and what they do not touch."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import TrainingFailedError
from paceline.air.result import Result
from paceline.storage.stager import Stager

HOSTILE = "<img src=x onerror=alert(1)>"


def text_of(shown: object) -> str:
    """The words of a repr, which must be well-formed."""
    markup = shown._repr_html_()  # type: ignore[attr-defined]
    assert isinstance(markup, str)
    assert "<img" not in markup
    assert "<script" not in markup
    return " ".join(" ".join(ElementTree.fromstring(markup).itertext()).split())


class TestResult:
    def test_what_it_says(self) -> None:
        metrics = {"loss": 0.25, "eval": {"accuracy": 0.5}, "training_iteration": 1, "time_total_s": 62.0, "pid": 77}
        text = text_of(Result(metrics=metrics, path="/results/run", attempts=2))
        assert text.startswith("Result · finished · 1 iteration · 1 min 02 s · 2 attempts")
        assert "loss 0.25" in text
        assert "eval/accuracy 0.5" in text
        assert "files /results/run" in text
        assert "77" not in text

    def test_many_metrics_are_counted(self) -> None:
        text = text_of(Result(metrics={f"m{number}": number for number in range(25)}))
        assert "m19 19 … and 5 more metrics" in text

    def test_a_failed_one(self) -> None:
        error = TrainingFailedError(f"Training failed: rank 1: ValueError: {HOSTILE}\nand much more")
        again = "Trainer.restore('/results/run').fit()"
        text = text_of(Result(error=error, status="failed", how_to_continue=again, warnings=["first", HOSTILE]))
        assert "failed · 0 iterations" in text
        assert f"Training failed: rank 1: ValueError: {HOSTILE}" in text
        assert "TrainingFailedError: Training failed" in text
        assert "paceline.air.errors" not in text
        assert "and much more" not in text
        assert f"to continue {again}" in text
        assert f"2 warnings first {HOSTILE}" in text

    def test_texts_are_escaped(self) -> None:
        text = text_of(Result(metrics={HOSTILE: HOSTILE}, path=f"/results/{HOSTILE}"))
        assert text.count(HOSTILE) == 3

    def test_no_row_is_read(self) -> None:
        class Untouchable:
            def rows(self) -> list[dict[str, object]]:
                raise AssertionError("somebody reads the rows")

            rank_rows = rows

        assert "loss 1" in text_of(Result(metrics={"loss": 1}, _history=Untouchable()))


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A checkpoint as a run commits it, with a pickle that must not be loaded."""
    folder = tmp_path / "checkpoint_000003"
    stager = Stager(folder)
    for name, size in (("model.pt", 5000), ("dict_checkpoint.pkl", 10), (f"{HOSTILE.replace('/', '')}.txt", 1)):
        with stager.open(name) as file:
            file.write(b"\x80" * size)
    stager.finish({"number": 3, "iteration": 7, "metrics": {"loss": 0.5, HOSTILE: 1}})
    return folder


class TestCheckpoint:
    def test_committed(self, committed: Path) -> None:
        text = text_of(Checkpoint(str(committed)))
        assert text.startswith(f"Checkpoint · iteration 7 · 3 files · 5.0 kB directory {committed}")
        assert "loss 0.5" in text
        assert "model.pt 5.0 kB dict_checkpoint.pkl 10 bytes" in text

    def test_only_the_manifest_is_read(self, committed: Path) -> None:
        checkpoint = Checkpoint(str(committed))
        for file in committed.iterdir():
            if file.name != "MANIFEST.json":
                file.unlink()
        assert "3 files" in text_of(checkpoint)

    def test_a_damaged_manifest(self, committed: Path) -> None:
        checkpoint = Checkpoint(str(committed))
        (committed / "MANIFEST.json").write_text("{")
        assert "damaged" in text_of(checkpoint)

    def test_a_directory_of_the_users(self, tmp_path: Path) -> None:
        checkpoint = Checkpoint(str(tmp_path))
        assert "not committed by a run" in text_of(checkpoint)

    def test_one_that_is_gone(self, tmp_path: Path) -> None:
        folder = tmp_path / "gone"
        folder.mkdir()
        checkpoint = Checkpoint(str(folder))
        folder.rmdir()
        assert "no longer there" in text_of(checkpoint)

    def test_in_memory(self) -> None:
        text = text_of(Checkpoint.from_dict({HOSTILE: 1, "epoch": 2}))
        assert f"a dict in memory keys '{HOSTILE}', 'epoch'" in text
        assert "packed checkpoint" in text_of(Checkpoint.from_bytes(Checkpoint.from_dict({"x": 1}).to_bytes()))

    def test_remote(self) -> None:
        checkpoint = Checkpoint.from_dict({"x": 1})
        remote = Checkpoint.from_uri(checkpoint.to_uri("memory://notebook/checkpoint"))
        assert "on remote storage place" in text_of(remote)
        assert "memory://notebook/checkpoint" in text_of(remote)
