"""Cells of a notebook in tracebacks of workers, and how IPython shows a failed training."""

from __future__ import annotations

import linecache
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import paceline
from paceline.air.cells import in_notebook, place_in_words, shell, with_cells
from paceline.air.errors import AttemptFailure, TrainingFailedError, WorkerFailure
from paceline.air.notebook_traceback import frames_of, rendered
from paceline.air.words import printable

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in loop
    step(1)
  File "/home/me/train.py", line 7, in step
    raise KeyError("x")
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/train.py", line 9, in loop
    raise ValueError("no x") from error
ValueError: no x
it has two lines
"""


def failed(traceback: str = TRACEBACK, kind: str = "exception") -> TrainingFailedError:
    cause = WorkerFailure(1, kind, "ValueError: no x", traceback=traceback, exception_type="builtins.ValueError")  # type: ignore[arg-type]
    error = TrainingFailedError("Training failed: ...", failures=(AttemptFailure(0, cause),))
    error.brief = "Training failed: rank 1: ValueError: no x"
    return error


class TestOutsideIPython:
    def test_nothing_changes(self) -> None:
        assert shell() is None or "IPython" in sys.modules
        if shell() is None:
            assert not in_notebook()
            assert with_cells(TRACEBACK) is TRACEBACK

    def test_ipython_is_not_imported(self) -> None:
        code = "import sys; from paceline.air.cells import in_notebook; in_notebook(); print('IPython' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"

    def test_places(self) -> None:
        assert place_in_words("/home/me/train.py", 7) == "/home/me/train.py:7"
        assert place_in_words("Cell In[3]", 7) == "Cell In[3], line 7"

    def test_python_itself_shows_what_it_always_did(self) -> None:
        code = (
            "from paceline.air.errors import TrainingFailedError\n"
            "error = TrainingFailedError('the whole message')\nerror.brief = 'brief'\nraise error\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stderr.endswith("TrainingFailedError: the whole message\n")
        assert done.stderr.startswith("Traceback (most recent call last):\n")


class TestRendered:
    def test_frames(self) -> None:
        frames, end = frames_of(TRACEBACK.split("exception:\n")[1])
        assert [(frame.file, frame.line, frame.function) for frame in frames] == [("/home/me/train.py", 9, "loop")]
        assert end == ["ValueError: no x", "it has two lines"]

    def test_the_whole_chain(self) -> None:
        text = "\n".join(rendered(failed()))
        first, cause, second = (text.index(part) for part in ("KeyError: 'x'", "direct cause", "ValueError: no x"))
        assert first < cause < second
        assert "/home/me/train.py:9" in text
        assert 'raise ValueError("no x") from error' in text
        assert "Traceback of rank 1" in text.split("\n")[1]
        assert text.rstrip().endswith("Training failed: rank 1: ValueError: no x")

    def test_a_deep_recursion_is_short(self) -> None:
        frames = '  File "/home/me/train.py", line 3, in loop\n    loop()\n' * 900
        lines = rendered(failed(f"Traceback (most recent call last):\n{frames}RecursionError: too deep\n"))
        assert len(lines) < 40
        assert any("more calls" in line for line in lines)

    def test_lines_around_are_those_of_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "train.py"
        file.write_text("def loop():\n    x = 1\n    raise ValueError(x)\n\n\nloop()\n")
        frame = f'  File "{file}", line 3, in loop\n    raise ValueError(x)\n'
        said = f"Traceback (most recent call last):\n{frame}ValueError: 1\n"
        text = "\n".join(rendered(failed(said)))
        assert "      2     x = 1\n" in text
        assert "----> 3     raise ValueError(x)" in text
        file.write_text("something else\n" * 9)
        linecache.checkcache(str(file))
        text = "\n".join(rendered(failed(said)))
        assert "something else" not in text, "the file is another one by now"
        assert "raise ValueError(x)" in text

    @pytest.mark.parametrize("traceback", ["", "Fatal Python error: Segmentation fault\n\nThread 1:\n  no frames\n"])
    def test_a_rank_that_was_killed(self, traceback: str) -> None:
        lines = rendered(failed(traceback, "signal"))
        assert lines[1].endswith("Training failed: rank 1: ValueError: no x")


IN_IPYTHON = """
    import os
    os.environ["PACELINE_RESULTS_DIR"] = os.path.join(os.environ["HOME"], "results")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell("from paceline import train; from paceline.train import DataParallelTrainer", store_history=True)
    shell.run_cell('''
    def train_loop():
        total = 0
        raise ValueError("boom")

    config = train.RunConfig(verbose=0, engine="inline")
    trainer = DataParallelTrainer(train_loop, scaling_config=train.ScalingConfig(num_workers=1), run_config=config)
    ''', store_history=True)
    error = shell.run_cell("trainer.fit()", store_history=True).error_in_exec
    shell.run_cell("train.ScalingConfig(num_workers=-1)", store_history=True)
    print("STORED", open(os.path.join(error.result.path, "error.txt")).read())
"""


def test_in_ipython(tmp_path: Path) -> None:
    """The cell is named and its line shown, in what IPython prints and in the files."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(IN_IPYTHON))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    shown, _, stored = printable(done.stdout).partition("STORED")
    assert "Cell In[2], line 3" in shown, done.stdout + done.stderr
    assert '----> 3     raise ValueError("boom")' in shown
    assert "Cell In[4], line 1" in shown
    assert "num_workers" in shown.splitlines()[-1]
    assert "Called in Cell In[3], line 1: trainer.fit()" in shown
    assert str(Path(paceline.__file__).parent) not in shown, "our own frames are left out"
    assert 'File "Cell In[2]", line 3, in train_loop\n    raise ValueError("boom")' in stored
