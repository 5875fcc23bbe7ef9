"""The list of runs in a real browser: curves, filter, order, keyboard, colours, and names that mean harm."""

from __future__ import annotations

import importlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import expect

from paceline import tune
from paceline.air import RunConfig, ScalingConfig, session
from paceline.run.records import Ended, Reached
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner
from paceline.view import dash
from tests.view.browsing import Tab
from tests.view.journals import attempt, header, row, write

Open = Callable[..., Tab]

EVIL_NAME = '<img src=x onerror="window.harmed=1">'
EVIL_METRIC = '"><script>window.harmed=2</script>/a b\u202e%2F..'
MANY = 400
LONG = 20_000


def loop(config: dict[str, Any]) -> None:
    for step in range(1, config["steps"] + 1):
        session.report({"loss": config["lr"] + 1 / step, "eval": {"auc": 1 - config["lr"] / step}})


def fit(root: Path, name: str, **config: Any) -> None:
    DataParallelTrainer(
        loop,
        train_loop_config={"steps": 60, "lr": 0.1, "layers": {"dim": 8}, **config},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name=name, storage_path=str(root), verbose=0, engine="inline"),
    ).fit()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three runs, the last two of which differ, and one whose author means harm."""
    root = tmp_path_factory.mktemp("results")
    fit(root, "first")
    fit(root, "second", lr=0.2)
    fit(root, "third", lr=0.3, layers={"dim": 16})
    rows = [row(index, {"loss": 1.0 / index, EVIL_METRIC: index}) for index in range(1, 20)]
    write(root / "evil" / "run", [header(EVIL_NAME), attempt(), *rows])
    with dash(root, port=0, blocking=False) as running:
        yield running


def test_the_list_shows_runs_with_their_curves(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    for name in ("first", "second", "third"):
        line = tab.row(name)
        expect(line).to_contain_text("finished")
        expect(line.locator(".spark path")).to_have_attribute("d", re.compile("^M"))
        expect(line.get_by_role("checkbox")).to_be_checked()
    expect(tab.row("first")).to_contain_text("0.1167")  # the last loss
    expect(tab.row("first")).to_contain_text("60")
    expect(tab.row(EVIL_NAME)).to_contain_text("killed")  # its journal has no end
    expect(tab.chart("loss").locator(".plot")).to_have_attribute("data-points", str(3 * 60 + 19))
    expect(tab.chart("eval/auc").locator(".plot")).to_have_attribute("data-points", str(3 * 60))


def test_the_link_works_from_pages_of_others(server: Any, tab_of: Open) -> None:
    """A notebook or a mail shows the link. Such a page can lead here, although it cannot use the cookie."""
    tab = tab_of(server)
    tab.page.goto(f"data:text/html,<a href='{server.link}'>the runs</a>")
    tab.page.get_by_role("link").click()
    expect(tab.find(".live.open")).to_be_visible()
    assert "token" not in tab.page.url


def test_a_tab_in_the_background_holds_no_connection(server: Any, tab_of: Open) -> None:
    """A browser gives a server six connections. Six runs opened in the background would leave none for the seventh."""
    tab = tab_of(server)
    tab.page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => !window.seen, configurable: true})")
    tab.page.goto(server.link)
    expect(tab.row("first")).to_be_visible()  # it has loaded
    tab.drawn()
    assert not tab.asked_for("^/api/live")
    tab.page.evaluate("window.seen = true; document.dispatchEvent(new Event('visibilitychange'))")
    expect(tab.find(".live.open")).to_be_visible()
    assert tab.asked_for("^/api/live")


def test_filter_order_and_status(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    names = tab.find(".row:not(.head) .title a")
    expect(names).to_have_text(["third", "second", "first", EVIL_NAME])
    tab.page.get_by_role("button", name="Last").click()
    expect(names).to_have_text(["third", "second", "first", EVIL_NAME])
    tab.page.get_by_role("button", name=re.compile("^Last")).click()
    expect(names).to_have_text([EVIL_NAME, "first", "second", "third"])
    tab.page.get_by_label("Filter", exact=True).fill("loss>0.2")
    expect(names).to_have_text(["second", "third"])
    tab.page.get_by_label("Filter", exact=True).fill("nobody")
    expect(tab.find(".empty").first).to_contain_text("No run matches")
    expect(tab.find(".empty").last).to_contain_text("The filter hides the selected runs")
    expect(tab.find(".foot")).to_contain_text("4 selected, hidden by the filter")
    tab.page.get_by_label("Filter", exact=True).fill("loss<")
    expect(tab.find(".bar .hint").first).to_contain_text("loss< is not a comparison")
    tab.page.get_by_label("Filter", exact=True).fill("")
    tab.page.get_by_role("button", name="killed 1").click()
    expect(names).to_have_text([EVIL_NAME])


def test_a_reload_keeps_the_view(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    tab.row("first").get_by_role("checkbox").uncheck()
    tab.page.get_by_label("Metric", exact=True).select_option("eval/auc")
    tab.page.get_by_role("button", name=re.compile("^Iteration")).click()
    tab.page.get_by_label("Smoothing").fill("0.6")
    tab.page.get_by_role("button", name="log y").click()
    tab.page.get_by_label("x axis").select_option("relative")
    tab.page.get_by_label("x axis").select_option("step")
    drag(tab, "loss", 0.2, 0.6)
    expect(tab.page.get_by_role("button", name=re.compile("^step "))).to_be_visible()
    expect(tab.page).to_have_url(re.compile(r"zoom=[\d.]+:[\d.]+"))
    before = tab.page.url
    for part in ("sel=", "metric=eval/auc", "sort=iteration.desc", "smooth=0.6", "logy=1"):
        assert part in before
    tab.page.reload()
    expect(tab.row("second").get_by_role("checkbox")).to_be_checked()
    expect(tab.row("first").get_by_role("checkbox")).not_to_be_checked()
    expect(tab.page.get_by_label("Metric", exact=True)).to_have_value("eval/auc")
    expect(tab.page.get_by_label("Smoothing")).to_have_value("0.6")
    expect(tab.page.get_by_role("button", name="log y")).to_have_attribute("aria-pressed", "true")
    expect(tab.page.get_by_role("button", name=re.compile("^step "))).to_be_visible()
    assert tab.page.url == before
    tab.go_to("second")
    expect(tab.page.get_by_label("Smoothing")).to_have_value("0.6")
    tab.page.go_back()
    expect(tab.row("second")).to_be_visible()
    assert tab.page.url == before


def test_the_keyboard(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    expect(tab.row("third")).to_be_visible()
    press = tab.page.keyboard.press
    press("j")
    press("j")
    expect(tab.row("second")).to_have_class(re.compile("current"))
    press("k")
    expect(tab.row("third")).to_have_class(re.compile("current"))
    press("x")
    expect(tab.row("third").get_by_role("checkbox")).not_to_be_checked()
    press("Enter")
    expect(tab.find("h1")).to_have_text("third")
    press("3")
    expect(tab.page.get_by_role("tab", name="Ranks")).to_have_attribute("aria-selected", "true")
    press("Escape")
    expect(tab.row("third")).to_be_visible()
    press("/")
    expect(tab.page.get_by_label("Filter", exact=True)).to_be_focused()
    tab.page.keyboard.type("jk?")
    expect(tab.page.get_by_label("Filter", exact=True)).to_have_value("jk?")
    press("Escape")
    press("?")
    expect(tab.page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    press("Escape")
    expect(tab.page.get_by_role("dialog", name="Keyboard")).to_be_hidden()


def background(tab: Tab) -> str:
    return str(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_dark_colours(server: Any, tab_of: Open) -> None:
    light, dark = tab_of(server, color_scheme="light"), tab_of(server, color_scheme="dark")
    light.open()
    dark.open()
    shades = background(light), background(dark)
    assert shades[0] != shades[1]
    dark.page.get_by_role("button", name="Light colours").click()
    assert background(dark) == shades[0]
    dark.page.reload()  # the choice stays
    expect(dark.page.get_by_role("button", name="Dark colours")).to_be_visible()
    assert background(dark) == shades[0]
    dark.page.keyboard.press("t")
    assert background(dark) == shades[1]


def test_names_that_mean_harm_are_text(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    expect(tab.row(EVIL_NAME)).to_be_visible()
    expect(tab.find(f".chart-name[title='{EVIL_METRIC}']")).to_be_visible()
    over = tab.chart("loss").locator(".u-over")
    over.hover()
    expect(tab.chart("loss").locator(".tip")).to_be_visible()
    tab.go_to(EVIL_NAME)
    expect(tab.find(".verdict")).to_contain_text("killed")
    tab.page.get_by_role("tab", name="Charts").click()
    expect(tab.find(f".chart-name[title='{EVIL_METRIC}']")).to_be_visible()
    assert tab.page.evaluate("window.harmed") is None
    assert tab.find("main img, main script").count() == 0


def test_compare_shows_only_what_differs(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    tab.row("first").get_by_role("checkbox").uncheck()
    tab.row(EVIL_NAME).get_by_role("checkbox").uncheck()
    tab.page.get_by_role("link", name="Compare 2").click()
    expect(tab.find("h1")).to_have_text("Compare 2 runs")
    table = tab.find(".compare table")
    expect(table).to_contain_text("layers/dim")
    expect(table.locator("tr", has_text="layers/dim").locator("td")).to_have_text(["16", "8"])
    expect(table).to_contain_text("lr")
    expect(table).not_to_contain_text("steps")
    expect(tab.chart("loss").locator(".plot")).to_have_attribute("data-points", "120")


def test_a_phone(server: Any, tab_of: Open) -> None:
    tab = tab_of(server, viewport={"width": 390, "height": 800}, has_touch=True)
    tab.open()
    expect(tab.row("first")).to_be_visible()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.page.get_by_role("button", name="Charts", exact=True).click()
    expect(tab.chart("loss")).to_be_visible()
    tab.page.get_by_role("button", name="List", exact=True).click()
    tab.go_to("first")
    expect(tab.chart("loss")).to_be_visible()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_of_many_runs_only_those_on_the_screen_are_in_the_document(tmp_path: Path, show: Any, tab_of: Open) -> None:
    for number in range(MANY):
        end = Ended(status="finished", time=time.time(), reached=Reached(iteration=1, metrics={"loss": number}))
        rows = [row(1, {"loss": number})]
        write(tmp_path / f"many-{number:03}" / "run", [header(f"many-{number:03}"), attempt(), *rows, end])
    server = show(tmp_path)
    tab = tab_of(server)
    tab.open("/?sort=name.asc&panel=list")
    expect(tab.find(".foot")).to_contain_text(f"{MANY} rows, 10 selected")
    assert tab.find(".row:not(.head)").count() < 80
    asked = tab.asked_for("^/api/sparks")
    assert asked
    assert all(each.count("%2C") < 80 for each in asked)  # only for what is seen
    tab.find(".virtual").evaluate("box => { box.scrollTop = box.scrollHeight }")
    expect(tab.row(f"many-{MANY - 1:03}")).to_be_visible()
    assert tab.find(".row:not(.head)").count() < 80


def test_a_server_that_is_gone_and_comes_back(tmp_path: Path, show: Any, tab_of: Open) -> None:
    write(tmp_path / "exp" / "run", [header("alone"), attempt(), row(1, {"loss": 1.0})])
    token = "a-token-that-both-servers-take-0123456789"
    with dash(tmp_path, port=0, token=token, blocking=False) as server:
        tab = tab_of(server)
        tab.open()
        expect(tab.row("alone")).to_be_visible()
        port = int(server.url.rpartition(":")[2])
    tab.expected.append("ERR_|Failed to load")
    expect(tab.find(".banner")).to_contain_text("does not answer")
    expect(tab.row("alone")).to_be_visible()  # what was known stays
    write(tmp_path / "later" / "run", [header("later"), attempt(), row(1, {"loss": 1.0})])
    tab.server = show(tmp_path, token=token, port=port)
    expect(tab.row("later")).to_be_visible()
    expect(tab.find(".banner")).to_be_hidden()


def trial(config: dict[str, Any]) -> None:
    for step in range(1, 4):
        session.report({"loss": config["lr"] / step})


@pytest.fixture(scope="module")
def forest() -> None:
    """What computes importances changes the environment when it is first imported, in the server's thread."""
    importlib.import_module("sklearn.ensemble")


def test_a_search_with_200_trials(tmp_path: Path, forest: None, show: Any, tab_of: Open) -> None:
    space = {"lr": tune.loguniform(1e-4, 1), "net": {"dim": tune.choice([16, 32])}, "kind": tune.choice(["a", "b"])}
    Tuner(
        trial,
        param_space=space,
        tune_config=TuneConfig(metric="loss", mode="min", num_samples=200, max_concurrent_trials=4),
        run_config=RunConfig(name="sweep", storage_path=str(tmp_path), verbose=0, engine="inline"),
    ).fit()
    server = show(tmp_path)
    tab = tab_of(server)
    tab.open()
    expect(tab.row("sweep")).to_contain_text("200/200")
    tab.go_to("sweep")
    expect(tab.find(".best")).to_contain_text("Best trial: trial")
    axes = tab.find(".parallel .axis-name")
    expect(axes).to_have_text(["lr log", "net/dim", "kind", "loss log"], use_inner_text=True)
    expect(tab.find(".timeline canvas")).to_be_visible()
    expect(tab.find(".importance").first).to_contain_text("lr", timeout=80_000)  # Optuna is imported for it
    axis = tab.find(".axis").first.bounding_box()
    assert axis is not None
    tab.page.mouse.move(axis["x"] + 12, axis["y"] + axis["height"] * 0.75)
    tab.page.mouse.down()
    tab.page.mouse.move(axis["x"] + 12, axis["y"] + axis["height"] + 5, steps=4)
    tab.page.mouse.up()
    expect(tab.page).to_have_url(re.compile("brush="))
    expect(tab.find(".chosen .row:not(.head)").first).to_be_visible()
    tab.page.get_by_role("tab", name="Trials 200").click()
    chosen = int(tab.find(".table").get_attribute("aria-rowcount") or 0)
    assert 0 < chosen < 200  # the brush is also a filter of the table
    assert tab.find(".row:not(.head)").count() <= chosen
    tab.page.get_by_role("tab", name="Charts").click()
    expect(tab.find(".curves")).to_contain_text("30 of 200 trials; best loss first")
    expect(tab.chart("loss").locator(".plot")).to_have_attribute("data-points", "90")  # three of each
    tab.page.get_by_role("button", name="Show more").click()
    expect(tab.find(".curves")).to_contain_text("60 of 200 trials")
    expect(tab.chart("loss").locator(".plot")).to_have_attribute("data-points", "180")


def equal(config: dict[str, Any]) -> None:
    if config["x"] in config.get("broken", ()):
        raise ValueError("this one is broken")
    session.report({"score": min(config["x"], 4)})


def test_a_search_beside_runs(tmp_path: Path, show: Any, tab_of: Open) -> None:
    """Each is shown with its own metric; of equal trials the first is the best."""
    fit(tmp_path, "alone")
    Tuner(
        equal,
        param_space={"x": tune.grid_search(list(range(12))), "broken": [9, 10]},
        tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1),
        run_config=RunConfig(name="ties", storage_path=str(tmp_path), verbose=0, engine="inline"),
    ).fit()
    tab = tab_of(show(tmp_path))
    tab.open()
    expect(tab.page.get_by_label("Metric", exact=True)).to_have_value("loss")
    expect(tab.row("alone")).to_contain_text("0.1167")
    expect(tab.row("ties")).to_contain_text("best score 4")
    tab.row("ties").dblclick()
    expect(tab.find("h1")).to_have_text("ties")
    assert tab.page.evaluate("getSelection().toString()") == ""
    expect(tab.find(".headline .status")).to_have_text("finished, 2 failed")
    expect(tab.find(".facts")).to_contain_text("Trainable")
    expect(tab.find(".best")).to_contain_text("Best trial: trial 4 score 4")
    tab.page.get_by_role("tab", name="Trials 12").click()
    expect(tab.find(".row:not(.head) input:checked")).to_have_count(12)


def test_a_search_that_was_killed_says_how_many_trials_there_would_have_been(
    tmp_path: Path, show: Any, tab_of: Open
) -> None:
    Tuner(
        equal,
        param_space={"x": tune.grid_search(list(range(12)))},
        tune_config=TuneConfig(metric="score", mode="max", max_concurrent_trials=1),
        run_config=RunConfig(name="cut", storage_path=str(tmp_path), verbose=0, engine="inline"),
    ).fit()
    journal = next((tmp_path / "cut").glob("experiment-*.jsonl"))
    lines = journal.read_bytes().splitlines(keepends=True)
    fourth = next(place for place, line in enumerate(lines) if b'{"kind":"trial","n":3' in line)
    journal.write_bytes(b"".join(lines[:fourth]))
    for number in range(3, 12):
        shutil.rmtree(next(journal.parent.glob(f"*_{number:05d}*")))
    tab = tab_of(show(tmp_path))
    tab.open()
    expect(tab.row("cut")).to_contain_text("3/12")
    tab.go_to("cut")
    expect(tab.find(".facts")).to_contain_text("Trials3 of 12")


def drag(tab: Tab, metric: str, begin: float, end: float) -> None:
    """Zoom into a part of a chart; the ends are shares of its width."""
    tab.chart(metric).scroll_into_view_if_needed()
    tab.drawn()
    place = tab.chart(metric).locator(".u-over").bounding_box()
    assert place is not None
    tab.page.mouse.move(place["x"] + begin * place["width"], place["y"] + 40)
    tab.page.mouse.down()
    tab.page.mouse.move(place["x"] + end * place["width"], place["y"] + 40, steps=4)
    tab.page.mouse.up()


def test_zooming_into_a_long_curve_fetches_finer_points(tmp_path: Path, show: Any, tab_of: Open) -> None:
    rows = [row(index, {"loss": (index * 7919 % 1000) / 1000, "other": float(index)}) for index in range(1, LONG + 1)]
    write(tmp_path / "long" / "run", [header("long"), attempt(), *rows])
    tab = tab_of(show(tmp_path))
    tab.open()
    tab.go_to("long")
    tab.page.get_by_role("tab", name="Charts").click()
    plot = tab.chart("loss").locator(".plot")
    expect(plot).to_have_attribute("data-points", re.compile(r"^\d{4}$"))  # thinned to what can be seen
    drag(tab, "loss", 0.5, 0.6)
    expect(tab.page).to_have_url(re.compile("zoom="))
    expect(plot).to_have_attribute("data-finer", "true")
    assert tab.asked_for("^/api/series.*metric=loss.*from=")
    expect(tab.chart("other").locator(".plot")).to_have_attribute("data-finer", "true")  # all charts show the same part
    tab.page.get_by_label("Smoothing").fill("0.9")
    expect(plot).to_have_attribute("data-finer", "true")
    plot.locator(".u-over").dblclick()
    expect(tab.page).not_to_have_url(re.compile("zoom="))
    expect(plot).to_have_attribute("data-finer", "false")


def test_one_cursor_over_all_charts(server: Any, tab_of: Open) -> None:
    tab = tab_of(server)
    tab.open()
    tab.go_to("first")
    expect(tab.chart("eval/auc").locator(".plot")).to_have_attribute("data-points", "60")
    tab.chart("loss").locator(".u-over").hover(position={"x": 100, "y": 50})
    shown = tab.chart("loss").locator(".reading")
    expect(shown).to_contain_text("step")
    step = str(shown.text_content()).split()[1]
    expect(tab.chart("eval/auc").locator(".reading")).to_contain_text(f"step {step} ")
