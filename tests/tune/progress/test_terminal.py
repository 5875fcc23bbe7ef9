"""A search on the screen of a real terminal."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tests.terminal import Terminal

SEARCH = """
    from pathlib import Path
    from paceline import tune
    from paceline.train import RunConfig

    go_on = Path({go_on!r})

    def train_loop(config):
        import time
        for step in range(10_000):
            print("step", step)
            tune.report({{"loss": config["learning_rate"] / (step + 1), "accuracy": 0.5, "other": 1, "another": 2}})
            while step > 5 and not go_on.exists():
                time.sleep(0.01)

    space = {{"learning_rate": tune.uniform(0, 1), "hidden_size": 64, "activation_function": tune.choice(["relu"])}}
    tune.Tuner(
        train_loop,
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=3, metric="loss", mode="min", max_concurrent_trials=2),
        run_config=RunConfig(storage_path={folder!r}, name="search"),
    ).fit()
"""


def test_nothing_stays_after_an_interrupt(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SEARCH).format(go_on=str(tmp_path / "go on"), folder=str(tmp_path)))
    with Terminal([str(script)], rows=30) as terminal:
        terminal.wait_for("columns left out: ")
        terminal.wait_for(" 7")
        picture = "\n".join(terminal.screen)
        assert "search · 0/3 trials · 2 running" in picture
        assert re.search(r"columns left out: .*another", picture), picture
        terminal.interrupt()
        terminal.wait_for("Stopping: ")
        (tmp_path / "go on").touch()
        assert terminal.finish() == 130
        lines = terminal.lines
    text = "\n".join(lines)
    assert " · " not in text, text
    assert "columns left out" not in text
    assert "^C" not in text.partition("Traceback")[0]
    end = next(number for number, line in enumerate(lines) if line.startswith("search interrupted after "))
    printed = [number for number, line in enumerate(lines) if line.startswith("(trial ")]
    assert printed
    assert max(printed) < end, "nothing is shown after the closing lines"
    for trial in ("00000", "00001"):
        steps = [int(line.split()[-1]) for line in lines if line.startswith(f"(trial {trial}) step")]
        assert steps == list(range(len(steps)))
        assert len(steps) >= 7
    assert text.count("paceline dash") == 1
