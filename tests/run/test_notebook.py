"""A notebook: training, a search, reprs and a failure in a real kernel, and what a browser makes of their HTML."""

from __future__ import annotations

import html
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("playwright")

from jupyter_client.manager import AsyncKernelManager  # noqa: E402

from paceline.air.words import printable  # noqa: E402
from tests.view.browsing import chromium  # noqa: E402

HOSTILE = "<img src=x onerror='window.harmed=1'>"

CELLS = {
    "prepare": """
        from pathlib import Path
        from paceline import data, train, tune
        from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

        results = RESULTS
        two = ScalingConfig(num_workers=2)
    """,
    "train": """
        def train_loop():
            import time

            for epoch in range(24):
                print(f"epoch {epoch} HOSTILE")
                metrics = {"epoch": epoch, "loss": 1 / (epoch + 1), "accuracy": epoch / 24, "HOSTILE": "HOSTILE"}
                last = epoch == 23
                train.report(metrics, checkpoint=Checkpoint.from_dict({"epoch": epoch}) if last else None)
                time.sleep(0.05)

        config = RunConfig(storage_path=results, name="HOSTILE".replace("/", ""))
        trainer = DataParallelTrainer(train_loop, scaling_config=two, run_config=config)
        result = trainer.fit()
    """,
    "result": "result",
    "checkpoint": "result.checkpoint",
    "dataset": 'data.from_items([{"x": 1, "HOSTILE": "a"}]).select_columns(["x"])',
    "search": """
        def objective(config):
            print("trying", config["lr"])
            for step in range(3):
                tune.report({"loss": (config["lr"] - 0.3) ** 2 + 1 / (step + 1)})
            if config["lr"] == 0.9:
                raise ValueError("HOSTILE")

        grid = tune.Tuner(
            objective,
            param_space={"lr": tune.grid_search([0.1, 0.3, 0.5, 0.7, 0.9])},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=RunConfig(storage_path=results, name="search"),
        ).fit()
    """,
    "grid": "grid",
    "silent": """
        DataParallelTrainer(
            lambda: train.report({"loss": 1}),
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(storage_path=results, verbose=0, engine="inline"),
        ).fit().metrics["loss"]
    """,
    "restored": "DataParallelTrainer.restore(result.path, train_loop).fit().metrics['epoch']",
    "reporter": """
        tune.Tuner(
            lambda config: {"loss": 1.0},
            run_config=RunConfig(
                storage_path=results, name="reported", progress_reporter=tune.JupyterNotebookReporter()
            ),
        ).fit().num_errors
    """,
    "failing": """
        def step(epoch):
            if epoch == 2:
                raise ValueError("HOSTILE")

        def failing_loop():
            for epoch in range(5):
                step(epoch)
                train.report({"loss": 1 / (epoch + 1)})

        DataParallelTrainer(
            failing_loop, scaling_config=two, run_config=RunConfig(storage_path=results, name="failing")
        ).fit()
    """,
}


class Executed(nbclient.NotebookClient):  # type: ignore[misc]
    """Executes the cells, and remembers what each of them showed on the way."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.shown: dict[int, list[str]] = {}

    def process_message(self, message: dict[str, Any], cell: Any, place: int) -> Any:
        if message["msg_type"] in ("display_data", "update_display_data"):
            self.shown.setdefault(place, []).append(message["content"]["data"].get("text/html", ""))
        return super().process_message(message, cell, place)


class Notebook:
    """The outputs of the cells by their names."""

    def __init__(self, folder: Path) -> None:
        fill = {"RESULTS": repr(str(folder / "results")), "HOSTILE": HOSTILE}
        sources = [
            re.sub("|".join(fill), lambda found: fill[found[0]], textwrap.dedent(source).strip())
            for source in CELLS.values()
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        client = Executed(
            notebook,
            km=AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "kernel")),  # no ports
            timeout=60,
            allow_errors=True,
        )
        client.owns_km = True  # it ends the kernel
        client.execute(env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, cwd=str(folder))
        self.cells = dict(zip(CELLS, notebook.cells, strict=True))
        self.shown = {name: client.shown.get(place, []) for place, name in enumerate(CELLS)}

    def html(self, name: str) -> str:
        """What stays below a cell."""
        (found,) = (output["data"]["text/html"] for output in self.cells[name].outputs if "data" in output)
        return str(found)

    def text(self, name: str) -> str:
        (found,) = (output["data"]["text/plain"] for output in self.cells[name].outputs if "data" in output)
        return str(found)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory, no_process_left: None) -> Notebook:
    return Notebook(tmp_path_factory.mktemp("notebook"))


def words(markup: str) -> str:
    """The text of HTML, roughly."""
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", markup)).split())


class TestTraining:
    def test_the_view_is_live(self, notebook: Notebook) -> None:
        shown = notebook.shown["train"]
        running = [words(each) for each in shown if " running · 2 workers" in words(each)]
        assert len(running) >= 2, "it is replaced while the training runs"
        iterations = [int(re.search(r"iteration (\d+)", each).group(1)) for each in running]  # type: ignore[union-attr]
        assert iterations == sorted(iterations)
        assert len(notebook.cells["train"].outputs) == 1, "in place: one output, and nothing printed beside it"

    def test_it_is_not_replaced_too_often(self, notebook: Notebook) -> None:
        """A drawing every 300 ms, and a few for what is said at the beginning and at the end."""
        took = re.search(r" · ([\d.]+) s ", words(notebook.html("train")))
        assert took is not None
        assert len(notebook.shown["train"]) <= float(took.group(1)) / 0.3 + 6

    def test_what_stays(self, notebook: Notebook) -> None:
        text = words(notebook.html("train"))
        assert re.search(r"^DataParallelTrainer_\w+ · finished · 2 workers · iteration 24 · checkpoint_000000 · ", text)
        assert " loss 0.041667 " in text
        assert re.search(r" 0 ended 24 [0-9.]+ ms 0% epoch 23", text)
        assert re.search(r" 1 ended 24 [0-9.]+ ms 0% epoch 23", text)
        assert "(rank 0) epoch 0 " in text
        assert text.index("(rank 1) epoch 22") < text.index("(rank 1) epoch 23")
        assert "window.harmed=1" in text
        assert "<img" not in notebook.html("train")

    def test_the_text_of_it(self, notebook: Notebook) -> None:
        text = notebook.text("train")
        assert re.match(r"DataParallelTrainer_\w+ finished after 24 iterations, ", text)
        assert re.search(r"\n  loss +0\.041667\n", text)

    def test_the_page_is_not_advertised(self, notebook: Notebook) -> None:
        assert "paceline dash" not in str(notebook.cells["train"].outputs)

    def test_silent(self, notebook: Notebook) -> None:
        (output,) = notebook.cells["silent"].outputs
        assert output["data"]["text/plain"] == "1"

    def test_restoring_a_finished_run(self, notebook: Notebook) -> None:
        shown, value = notebook.cells["restored"].outputs
        assert "had finished already: 24 iterations" in words(shown["data"]["text/html"])
        assert value["data"]["text/plain"] == "23"


class TestSearch:
    def test_what_stays(self, notebook: Notebook) -> None:
        text = words(notebook.html("search"))
        assert re.search(r"^search · finished · 5/5 trials · 1 failed · ", text)
        assert "best loss so far" in text
        assert re.search(r"★00001 TERMINATED 0.3 0.33333 3 ", text)
        assert re.search(r"Failed: objective_\w+: ValueError: .* \(Cell In\[6\], line 6\)", text)
        assert "(trial 00000) trying 0.1" in text
        assert "Tuner.restore(" in text

    def test_it_is_live(self, notebook: Notebook) -> None:
        assert any(" running · " in words(each) for each in notebook.shown["search"])
        assert len(notebook.cells["search"].outputs) == 1

    def test_a_reporter_of_the_users_takes_its_place(self, notebook: Notebook) -> None:
        outputs = notebook.cells["reporter"].outputs
        assert any("<pre>== 1" in output.get("data", {}).get("text/html", "") for output in outputs), outputs
        assert any("finished after" in output.get("text", "") for output in outputs)


class TestReprs:
    def test_result(self, notebook: Notebook) -> None:
        assert words(notebook.html("result")).startswith("Result · finished · 24 iterations · ")

    def test_checkpoint(self, notebook: Notebook) -> None:
        assert words(notebook.html("checkpoint")).startswith("Checkpoint · iteration 24 · ")

    def test_dataset(self, notebook: Notebook) -> None:
        assert words(notebook.html("dataset")).startswith("Dataset · 1 column table(1 row) → ")

    def test_grid(self, notebook: Notebook) -> None:
        assert words(notebook.html("grid")).startswith("ResultGrid · 5 trials · 4 finished · 1 failed ")


class TestFailure:
    @pytest.fixture
    def error(self, notebook: Notebook) -> Any:
        return notebook.cells["failing"].outputs[-1]

    def test_the_users_lines_come_first(self, error: Any) -> None:
        lines = printable("\n".join(error["traceback"])).split("\n")
        assert re.fullmatch(r"ValueError +Traceback of rank [01] \(most recent call last\)", lines[1])
        assert lines[2] == "Cell In[11], line 7, in failing_loop"
        assert "----> 7         step(epoch)" in lines
        raised = lines.index("Cell In[11], line 3, in step")
        assert f'----> 3         raise ValueError("{HOSTILE}")' in lines[raised : raised + 5]
        assert lines[-1].startswith("Called in Cell In[11], line ")
        assert not any("/paceline/" in line and "File" in line for line in lines), "no frame of ours"

    def test_the_message_is_whole(self, error: Any) -> None:
        text = printable("\n".join(error["traceback"]))
        assert "The same on rank " in text
        assert "To continue: DataParallelTrainer.restore(" in text
        assert error["ename"] == "TrainingFailedError"
        assert 'File "Cell In[11]", line 3, in step' in error["evalue"]

    def test_the_view_says_so(self, notebook: Notebook) -> None:
        text = words(notebook.cells["failing"].outputs[0]["data"]["text/html"])
        assert re.search(r"^DataParallelTrainer_\w+ · failed · 2 workers · iteration 2 · no checkpoint yet · ", text)
        assert "The run is not retried." in text
        assert "0 failed 2" in text


PAGE = """<!doctype html><meta charset="utf-8"><title>notebook</title><style>
body {{ font: 14px sans-serif; color: #222; background: #fff }}
@media (prefers-color-scheme: dark) {{ body {{ color: #ddd; background: #111 }} }}
</style>{}"""
SCHEMES = {"light": ("rgb(34, 34, 34)", "rgb(255, 255, 255)"), "dark": ("rgb(221, 221, 221)", "rgb(17, 17, 17)")}


@pytest.fixture(scope="module")
def pages(notebook: Notebook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The outputs in a browser, on a light and on a dark page."""
    names = ("train", "result", "checkpoint", "dataset", "search", "grid", "failing")
    shown = "\n".join(
        f'<section id="{name}">{output["data"]["text/html"]}</section>'
        for name in names
        for output in notebook.cells[name].outputs
        if "data" in output
    )
    file = tmp_path_factory.mktemp("page") / "notebook.html"
    file.write_text(PAGE.format(shown))
    with chromium() as browser:
        opened = {}
        for scheme in SCHEMES:
            page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme=scheme, locale="en-US")
            page.problems = []
            page.on("console", lambda message, page=page: page.problems.append(message.text))
            page.on("pageerror", lambda error, page=page: page.problems.append(error.message))
            page.on("request", lambda request, page=page: page.problems.append(request.url))
            page.goto(file.as_uri())
            page.problems.remove(file.as_uri())
            opened[scheme] = page
            if folder := os.environ.get("PACELINE_SCREENSHOTS"):
                page.screenshot(path=Path(folder, f"notebook-{scheme}.png"), full_page=True)
        yield opened


@pytest.mark.parametrize("scheme", SCHEMES)
class TestInABrowser:
    def test_nothing_is_run_or_fetched(self, pages: dict[str, Any], scheme: str) -> None:
        page = pages[scheme]
        assert page.problems == []
        assert page.evaluate("window.harmed") is None
        assert page.locator("script, img, iframe, link").count() == 0

    def test_texts_are_seen(self, pages: dict[str, Any], scheme: str) -> None:
        page = pages[scheme]
        assert "iteration 24" in page.inner_text("#train")
        assert HOSTILE in page.inner_text("#train")
        assert "best loss so far" in page.inner_text("#search")
        assert HOSTILE in page.inner_text("#failing")

    def test_colours_are_those_of_the_page(self, pages: dict[str, Any], scheme: str) -> None:
        page = pages[scheme]
        text, background = SCHEMES[scheme]
        found = page.evaluate(
            """() => [...document.querySelectorAll('section td, section th, section pre, section tr, section table')]
                .map(each => getComputedStyle(each)).map(style => [style.color, style.backgroundColor])"""
        )
        assert len(found) > 50
        assert {colour for colour, _ in found} == {text}
        assert {behind for _, behind in found} == {"rgba(0, 0, 0, 0)"}, "all of them are transparent"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
        stroke = page.locator("#train svg path").first.evaluate("each => getComputedStyle(each).stroke")
        assert stroke == text

    def test_the_curve_is_drawn_in_its_frame(self, pages: dict[str, Any], scheme: str) -> None:
        page = pages[scheme]
        frame, curve = (
            page.locator("#train svg rect").first.bounding_box(),
            page.locator("#train svg path").first.bounding_box(),
        )
        assert curve["width"] > 0.8 * frame["width"]
        assert curve["height"] > 0.8 * frame["height"]
        assert frame["x"] <= curve["x"] <= curve["x"] + curve["width"] <= frame["x"] + frame["width"]

    def test_the_newest_output_is_in_view(self, pages: dict[str, Any], scheme: str) -> None:
        """The box begins at its end, and can be scrolled to the beginning."""
        page = pages[scheme]
        box = page.locator("#train details div").first
        sizes = box.evaluate("each => [each.scrollTop, each.scrollHeight, each.clientHeight]")
        assert sizes[1] > sizes[2], "more lines than fit"
        assert sizes[0] == 0, "reversed: 0 is the end"
        pre, outer = box.locator("pre").bounding_box(), box.bounding_box()
        assert pre["y"] + pre["height"] <= outer["y"] + outer["height"] + 1
        box.evaluate("each => each.scrollTo(0, -1e9)")
        assert box.evaluate("each => each.scrollTop") < 0

    def test_nothing_is_wider_than_the_page(self, pages: dict[str, Any], scheme: str) -> None:
        page = pages[scheme]
        page.set_viewport_size({"width": 700, "height": 800})
        widest = page.evaluate(
            """() => Math.max(...[...document.querySelectorAll('section svg, section pre')]
                .map(each => each.getBoundingClientRect().right))"""
        )
        assert widest <= 700
        page.set_viewport_size({"width": 1000, "height": 800})
