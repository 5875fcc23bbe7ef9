"""What is on the screen after a run: nothing is missing without a word, nothing stays that should be gone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.terminal import Terminal

TRAINING = """
    import sys
    from pathlib import Path
    from paceline import train
    from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

    folder = Path({folder!r})
    workers = {workers}

    def train_loop():
        import time
        rank = train.get_context().get_world_rank()
        for epoch in range({epochs}):
            print("epoch", epoch)
            train.report({metrics})
            while {epochs} > 1000 and epoch > 5 and not (folder / "go on").exists():
                time.sleep(0.01)

    run_config = RunConfig(storage_path=str(folder), name="shown", verbose={verbose})
    scaling = ScalingConfig(num_workers=workers)
    trainer = DataParallelTrainer(train_loop, scaling_config=scaling, run_config=run_config)
    FIT
"""


def training(folder: Path, *, fit: str = "trainer.fit()", **changes: object) -> list[str]:
    given: dict[str, object] = {
        "workers": 2,
        "epochs": 3,
        "verbose": 3,
        "metrics": "{'loss': 1 / (epoch + 1)}",
        **changes,
    }
    script = folder / "script.py"
    script.write_text(textwrap.dedent(TRAINING).format(folder=str(folder), **given).replace("FIT", fit))
    return [str(script)]


class TestInterrupted:
    @pytest.fixture(params=[80, 50])
    def terminal(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
        """At 50 columns the last line of the picture is as wide as the terminal, so that ^C wraps."""
        metrics = "{'loss': 'x' * 40, 'second': 'y' * 40}"
        with Terminal(training(tmp_path, epochs=10_000, metrics=metrics), columns=request.param) as terminal:
            terminal.wait_for("yyyy")
            yield terminal

    def test_the_picture_is_gone(self, terminal: Terminal, tmp_path: Path) -> None:
        terminal.interrupt()
        terminal.wait_for("SIGINT")
        (tmp_path / "go on").touch()
        assert terminal.finish() == 130
        assert " · " not in terminal.text, terminal.text
        assert terminal.text.count("no checkpoint yet") == 0
        assert terminal.text.count("xxxx\n") == 1
        assert "interrupted after" in terminal.text

    def test_the_second_one_leaves_nothing_either(self, terminal: Terminal) -> None:
        terminal.interrupt()
        terminal.wait_for("SIGINT")
        terminal.interrupt()
        assert terminal.finish() == 130
        assert " · " not in terminal.text, terminal.text
        assert terminal.text.count("xxxx\n") == 1

    def test_while_workers_start(self, tmp_path: Path) -> None:
        """There is nothing to stop gracefully yet: the signal ends it."""
        with Terminal(training(tmp_path, epochs=10_000), columns=160) as terminal:
            terminal.wait_for("no checkpoint yet")
            terminal.interrupt()
            (tmp_path / "go on").touch()
            assert terminal.finish() == 130
            assert " · " not in terminal.text, terminal.text
            assert " interrupted after " in terminal.text


AND_RESTORE = """result = trainer.fit()
print("RESTORING")
DataParallelTrainer.restore(result.path, train_loop).fit()
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run with more metrics than fit, which is restored after it has finished."""
    folder = tmp_path_factory.mktemp("terminal")
    metrics = "{f'metric {number}': number for number in range(14)}"
    with Terminal(training(folder, epochs=1, metrics=metrics, fit=AND_RESTORE), columns=160) as terminal:
        assert terminal.finish() == 0, terminal.text
        return terminal.text


class TestFinished:
    def test_words(self, shown: str) -> None:
        text = shown.partition("RESTORING")[0].replace("\n", "")
        assert re.search(r"DataParallelTrainer_\w+: starting 2 workers, files in /\S+ ?", text)
        assert re.search(r" finished after 1 iteration, \d+\.\d s ", text)
        assert " started" not in text

    def test_restoring_a_finished_run_starts_nothing(self, shown: str) -> None:
        lines = shown.partition("RESTORING\n")[2].splitlines()
        assert re.fullmatch(r"DataParallelTrainer_\w+ had finished already: 1 iteration, \d+\.\d s", lines[0])
        assert lines[1].split() == ["metric", "0", "0"]
        assert not any("start" in line or "worker" in line for line in lines)

    def test_the_page_is_mentioned_once(self, shown: str) -> None:
        (line,) = [line for line in shown.splitlines() if "paceline dash" in line]
        assert re.fullmatch(r"To watch runs in a browser: paceline dash /\S+", line)
