"""A run that is continued has the backend that it had, or the user is asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig, ScalingConfig
from paceline.air.errors import RestoreError
from paceline.storage.journal import Journal, read
from paceline.train import Backend, BackendConfig, DataParallelTrainer
from tests.train.quick import quick_trainer
from tests.train.test_restoring import failed_run, fails_late, works

INLINE = RunConfig(verbose=0, engine="inline")


class Choir(Backend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, ChoirConfig)
        Sung.words.append(backend_config.word)


class Sung:
    words: list[str] = []


@dataclass
class ChoirConfig(BackendConfig):
    word: str = "la"

    @property
    def backend_cls(self) -> type[Backend]:
        return Choir


class ChoirTrainer(DataParallelTrainer):
    def __init__(self, train_loop_per_worker: Any, *, choir_config: ChoirConfig | None = None, **common: Any) -> None:
        super().__init__(train_loop_per_worker, backend_config=choir_config or ChoirConfig(), **common)


def test_a_backend_is_not_lost_when_a_run_is_continued() -> None:
    path = failed_run(backend=ChoirConfig("do")).path
    with pytest.raises(RestoreError, match=r"ran with backend_config=ChoirConfig.*pass backend_config=\.\.\."):
        DataParallelTrainer.restore(path, works)
    Sung.words.clear()
    DataParallelTrainer.restore(path, works, backend_config=ChoirConfig("re"), run_config=INLINE).fit()
    assert Sung.words == ["re"]


def test_resume_refuses_a_trainer_with_another_backend() -> None:
    failed_run(backend=ChoirConfig("do"), name="choir")
    with pytest.raises(RestoreError, match=r"backend_config=\.\.\. \(ChoirConfig there, BackendConfig here\)"):
        quick_trainer(works, inline=True, name="choir").fit(resume="auto")
    again = quick_trainer(works, inline=True, name="choir", backend=ChoirConfig("re"))
    assert again.fit(resume="must").status == "finished"


def test_the_line_that_continues_a_run_names_a_backend_that_is_an_object() -> None:
    assert quick_trainer(works, backend=ChoirConfig()).to_run_spec().again[-1] == "backend_config=..."
    one = ScalingConfig(num_workers=1)
    given = ChoirTrainer(works, choir_config=ChoirConfig("do"), scaling_config=one)
    assert given.to_run_spec().again[-1] == "choir_config=..."
    assert ChoirTrainer(works, scaling_config=one).to_run_spec().again == ("train_loop_per_worker=...",)


def test_settings_of_a_backend_that_are_not_brought_back_are_named() -> None:
    one = ScalingConfig(num_workers=1)
    trainer = ChoirTrainer(fails_late, choir_config=ChoirConfig("do"), scaling_config=one, run_config=INLINE)
    path = trainer.fit(raise_on_error=False).path
    with pytest.warns(UserWarning, match=r"word \('do' there, 'la' here\)\. Pass choir_config=\.\.\."):
        ChoirTrainer.restore(path, works)


def test_runs_of_earlier_versions_do_not_say_their_backend() -> None:
    path = Path(failed_run(backend=ChoirConfig("do")).path)
    journal = path / "journal.jsonl"
    records = list(read(journal))
    del records[0]["settings"]["backend"]
    journal.unlink()
    writer = Journal(journal)
    for record in records:
        writer.append(record, finite=False)
    writer.close()
    assert DataParallelTrainer.restore(path, works, run_config=INLINE).fit().status == "finished"
