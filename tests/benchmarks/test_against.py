"""Two versions of the package are measured in turn, and a row counts as worse only beyond noise."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.against import Pairs
from benchmarks.harness import PEERS, ROOT, Bench, Outcome
from benchmarks.table import Row


def row(what: str, value: float, peer: str = "-") -> Row:
    return Row("1", what, "s", [value], peer)


def test_rows_are_paired_by_name_and_peers_do_not_count_twice():
    found: dict[str, Pairs] = {}
    for old, new in ((1.0, 1.5), (1.0, 1.1)):
        against.pair_up(
            found, [row("fit", old, "Ray"), row("gone", 1.0)], [row("fit", new, "Ray"), row("fit", new, "x")]
        )
    assert list(found) == ["1 fit"]
    assert (found["1 fit"].before, found["1 fit"].after) == ([1.0, 1.0], [1.5, 1.1])


@pytest.mark.parametrize(
    ("unit", "after", "worse"),
    [
        ("s", [1.1, 1.1, 1.1, 1.1], True),
        ("s", [1.04, 1.04, 1.04, 1.04], False),
        ("s", [1.5, 1.5, 0.9, 0.8], False),  # noise
        ("1/s", [0.9, 0.9, 0.9, 0.9], True),
        ("1/s", [1.2, 1.2, 1.2, 1.2], False),
    ],
)
def test_what_counts_as_worse(unit, after, worse):
    assert Pairs("row", unit, [1.0] * 4, after).is_worse is worse


def test_the_scripts_find_the_package_of_the_commit(tmp_path):
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("not a git checkout")
    tree = against.tree_of("HEAD", tmp_path)
    script = tmp_path / "where.py"
    script.write_text(
        "import json, os, paceline, benchmarks\n"
        "found = {'paceline': paceline.__file__, 'benchmarks': os.path.realpath(benchmarks.__file__)}\n"
        "json.dump(found, open(os.environ['BENCH_OUT'], 'w'))\n"
    )
    with Bench(quick=True, with_ray=False, tree=tree) as bench:
        found = bench.run(script).data
    assert Path(found["paceline"]).is_relative_to(tree)
    assert Path(found["benchmarks"]).is_relative_to(ROOT)


def test_each_turn_has_a_scratch_folder_of_its_own(tmp_path):
    order = []

    def measure(bench):
        (bench.scratch / "written-once").mkdir()
        order.append(bench.tree)
        yield row("fit", 1.0)

    found: dict[str, Pairs] = {}
    against.measure_in_turn(measure, tmp_path, 3, found)

    assert order == [tmp_path, ROOT, ROOT, tmp_path, tmp_path, ROOT]
    assert len(found["1 fit"].after) == 3


def test_a_peer_runs_once(monkeypatch):
    bench = Bench(quick=True, with_ray=False, peers={})
    runs = []
    monkeypatch.setattr(bench, "_run", lambda script, *arguments: runs.append(script) or Outcome(1.0, {}))
    bench.run(PEERS / "some.py", "2")
    bench.run(PEERS / "some.py", "2")
    bench.run(PEERS / "some.py", "3")
    assert len(runs) == 2
