"""First 13: debugging that works, in a terminal and in a notebook, on ranks that are processes and on ranks in threads.

tests/run/test_debugging.py has the rest: queues, quitting, interrupts, post-mortems.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.terminal import Terminal

LOOP = """
    from paceline import train
    from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

    def loop():
        rank = train.get_context().get_world_rank()
        for epoch in range(3):
            answer = 40 + rank + epoch
            if rank == 1 and epoch == 1:
                breakpoint()
            train.report({"answer": answer})

    config = RunConfig(storage_path=STORAGE, name="debugged", engine=ENGINE)
    trainer = DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=config)
    result = trainer.fit()
    print("THE END", result.status, result.metrics["answer"], len(result.metrics_dataframe))
"""


def loop_in(storage: Path, engine: str = "local") -> str:
    return textwrap.dedent(LOOP).replace("STORAGE", repr(str(storage))).replace("ENGINE", repr(engine))


@pytest.mark.parametrize("engine", ["local", "inline", pytest.param("ray", marks=pytest.mark.cluster)])
def test_in_the_terminal_of_the_driver(tmp_path: Path, engine: str) -> None:
    """Hit a breakpoint on rank 1, print a local, continue, and the run finishes."""
    script = tmp_path / "script.py"
    script.write_text(loop_in(tmp_path, engine))
    with Terminal([str(script)], columns=160) as terminal:
        terminal.wait_for("(Pdb)")
        assert re.search(rf"rank 1 stopped at {script}:\d+ in loop\(\)", terminal.text)
        terminal.press("p answer\n")
        terminal.wait_for("42")
        terminal.press("c\n")
        assert terminal.finish() == 0, terminal.text
    assert "THE END finished 42 3" in terminal.text


def test_plain_pdb_sees_inline_ranks(tmp_path: Path) -> None:
    """Nothing of paceline is between pdb and the terminal."""
    text = loop_in(tmp_path, "inline").replace("breakpoint()", "import pdb; pdb.set_trace()")
    script = tmp_path / "script.py"
    script.write_text(text.replace("engine=", "verbose=1, engine="))
    with Terminal([str(script)], columns=160) as terminal:
        terminal.wait_for("(Pdb)")
        assert "stopped at" not in terminal.text
        terminal.press("p answer\n")
        terminal.wait_for("42")
        terminal.press("!import threading; print(threading.current_thread().name)\n")
        terminal.wait_for("paceline-rank-1")
        terminal.press("c\n")
        assert terminal.finish() == 0, terminal.text
    assert "THE END finished 42 3" in terminal.text


def test_in_a_notebook(tmp_path: Path) -> None:
    """The kernel asks the notebook for each line; the source of a cell is shown, which no file has."""
    manager = pytest.importorskip("jupyter_client.manager")
    root = str(Path(__file__).parents[2])
    kernel, client = manager.start_new_kernel(env={**os.environ, "PYTHONPATH": root}, startup_timeout=60)
    try:
        interrupts = iter([True])
        typed = iter(["p answer", "c"])
        prompts: list[str] = []
        shown: list[str] = []

        def answer(message: dict[str, Any]) -> None:
            prompts.append(message["content"]["prompt"])
            if next(interrupts, False):
                kernel.interrupt_kernel()  # For the line: the run continues.
            else:
                client.input(next(typed))

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text") or "\n".join(content.get("traceback", ())))

        def run(*, is_interactive: bool) -> str:
            shown.clear()
            hooks = {"stdin_hook": answer} if is_interactive else {}
            reply = client.execute_interactive(
                loop_in(tmp_path), output_hook=show, allow_stdin=is_interactive, timeout=60, **hooks
            )
            text = "".join(shown)
            assert reply["content"]["status"] == "ok", text
            assert "THE END finished 42 3" in text
            return text

        text = run(is_interactive=True)
        assert prompts == ["(Pdb) "] * 3
        assert text.count("--KeyboardInterrupt--") == 1
        assert re.search(r"rank 1 stopped at Cell In\[1\], line \d+ in loop\(\)", text)
        assert '-> train.report({"answer": answer})' in text
        assert "\n42\n" in text
        assert "stopped at" not in run(is_interactive=False), "nobody can type in a notebook that a program executes"
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
