"""A run that is at work: it is watched, asked for its stacks, and stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.view.page.paging import Page, showing
from tests.web.client import PATIENCE, until

DRIVER = """
import sys, time
from paceline.air import RunConfig, ScalingConfig, session
from paceline.train import DataParallelTrainer

def train_until_stopped(config):
    step = 0
    while True:
        step += 1
        print("line", step, flush=True)
        session.report({"loss": 1 / step})
        time.sleep(0.02)

DataParallelTrainer(
    train_until_stopped,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="live", storage_path=sys.argv[1], verbose=0, stop={"training_iteration": 100_000}),
).fit()
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, subprocess.Popen[bytes]]]:
    root = tmp_path_factory.mktemp("live")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(root)])
    try:
        with showing(root) as page:
            until(lambda: any(entry["iteration"] > 5 for entry in page.entries().values()))
            yield page, driver
    finally:
        driver.kill()
        driver.wait(PATIENCE)


def test_it_is_watched_and_stopped(live: tuple[Page, subprocess.Popen[bytes]]) -> None:
    page, driver = live
    (entry,) = page.entries().values()
    id = entry["id"]
    assert (entry["status"], entry["alive"], entry["workers"]) == ("running", True, 2)
    assert page.get(f"run/{id}")["ranks"] == [0, 1]

    found = page.get("series", run=id, metric="loss")
    wish = {"run": id, "metrics": ["loss"], "cursor": found["cursor"]}
    with page.stream(
        list=page.get("list")["cursor"], series=[wish], logs=[{"run": id, "rank": 1, "offset": 0}]
    ) as events:
        new = events.next("rows")["series"]["loss"]["x"]
        assert new[0] == found["rows"] + 1
        assert events.next("list")["entries"][0]["iteration"] > entry["iteration"]

        until(lambda: len(page.get(f"run/{id}/ranks")) == 2)
        until(lambda: all(rank["cpu"] is not None for rank in page.get(f"run/{id}/ranks")))
        ranks = page.get(f"run/{id}/ranks")
        assert [rank["rank"] for rank in ranks] == [0, 1]
        assert all(rank["memory"] > 1_000_000 and rank["last_index"] > 0 and rank["step_rate"] > 0 for rank in ranks)
        assert all(rank["step_time"] > rank["data_wait"] == 0 for rank in ranks)

        stacks = page.ask("POST", f"/api/run/{id}/stacks")
        assert stacks.status == 200
        assert stacks.json.keys() == {"0", "1"}
        assert "train_until_stopped" in stacks.json["0"]

        answer = page.ask("POST", f"/api/run/{id}/stop")
        assert (answer.status, answer.json) == (200, {"stopping": True})
        driver.wait(PATIENCE)
        while (changed := events.next("list")["entries"][0])["alive"]:
            pass
        assert changed["status"] == "interrupted"
    ended = page.get(f"run/{id}/ranks")  # of its last steps the journal knows
    assert [(rank["rank"], rank["state"], rank["memory"]) for rank in ended] == [(0, "ended", None), (1, "ended", None)]
    assert all(rank["step_time"] > 0 for rank in ended)
    assert page.ask("POST", f"/api/run/{id}/stop").status == 409
