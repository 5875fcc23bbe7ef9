"""Who may start now, and on which cards."""

from __future__ import annotations

import pytest

from paceline.air.errors import ConfigError
from paceline.engine.base import Placement
from paceline.tune.experiment.trials import Ledger, Request, resized

ONE = Request({"CPU": 1.0})


def test_what_is_taken_is_missing_until_it_is_given_back() -> None:
    ledger = Ledger({"CPU": 2.0, "GPU": 0.0})
    first, second = ledger.take(ONE), ledger.take(ONE)
    assert ledger.free == {"CPU": 0.0, "GPU": 0.0}
    assert not ledger.fits(ONE)
    ledger.give_back(first)
    assert ledger.fits(ONE)
    assert not ledger.fits(Request({"CPU": 2.0}))
    ledger.give_back(second)
    assert ledger.used == {"CPU": 0.0, "GPU": 0.0}


def test_parts_add_up() -> None:
    ledger = Ledger({"CPU": 1.0})
    tenth = Request({"CPU": 0.1})
    grants = [ledger.take(tenth) for _ in range(9)]
    assert ledger.fits(tenth)
    grants.append(ledger.take(tenth))
    assert not ledger.fits(tenth)
    for grant in grants:
        ledger.give_back(grant)
    assert ledger.free == {"CPU": 1.0}


def test_a_trial_larger_than_the_machine_runs_alone() -> None:
    ledger = Ledger({"CPU": 2.0})
    large = Request({"CPU": 8.0, "TPU": 1.0})
    assert ledger.fits(large)
    grant = ledger.take(large)
    assert not ledger.fits(ONE)
    assert not ledger.fits(Request({}, gpus_per_worker=1.0))
    ledger.give_back(grant)
    small = ledger.take(ONE)
    assert not ledger.fits(large)
    ledger.give_back(small)
    assert ledger.fits(large)


def test_each_trial_gets_cards_of_its_own() -> None:
    ledger = Ledger({"CPU": 8.0, "GPU": 3.0}, ["0", "1", "2"])
    pair = Request({"GPU": 2.0}, gpus_per_worker=1.0, workers=2)
    single = Request({"GPU": 1.0}, gpus_per_worker=1.0)
    first = ledger.take(pair)
    second = ledger.take(single)
    assert sorted([*first.devices, *second.devices]) == ["0", "1", "2"]
    assert not ledger.fits(single)
    ledger.give_back(first)
    assert ledger.take(pair).devices == first.devices


def test_parts_of_a_card_are_put_on_the_fullest_one() -> None:
    ledger = Ledger({"GPU": 2.0}, ["0", "1"])
    half = Request({"GPU": 0.5}, gpus_per_worker=0.5)
    whole = Request({"GPU": 1.0}, gpus_per_worker=1.0)
    assert [ledger.take(half).devices, ledger.take(half).devices] == [("0",), ("0",)]
    assert ledger.fits(whole)
    assert ledger.take(whole).devices == ("1",)
    assert not ledger.fits(half)


def test_workers_that_share_a_card() -> None:
    ledger = Ledger({"GPU": 2.0}, ["0", "1"])
    four_halves = Request({"GPU": 2.0}, gpus_per_worker=0.5, workers=4)
    assert ledger.take(four_halves).devices == ("0", "1")


def test_more_cards_than_there_are_can_never_be_had() -> None:
    ledger = Ledger({"GPU": 1.0}, ["0"])
    ledger.check(Request({"GPU": 1.0}, gpus_per_worker=0.5, workers=2))
    with pytest.raises(ConfigError, match=r"2 GPU\(s\).*2 card\(s\).*\b1\b"):
        ledger.check(Request({"GPU": 2.0}, gpus_per_worker=1.0, workers=2))


def test_workers_share_what_their_trial_is_resized_to() -> None:
    two = Request({"CPU": 2.0}, workers=2, placement=Placement.sketch(2, {"CPU": 1.0}))
    larger = resized(two, {"CPU": 6.0, "GPU": 2.0})
    assert larger.amounts == {"CPU": 6.0, "GPU": 2.0}
    assert larger.gpus_per_worker == 1.0
    assert larger.placement.resources == {"CPU": 3.0, "GPU": 1.0}


def test_room_beside_the_worker_is_resized_with_it() -> None:
    placement = Placement.sketch(1, {"CPU": 1.0}, beside=({"CPU": 1.0},) * 3)
    larger = resized(Request({"CPU": 4.0}, placement=placement), {"CPU": 8.0, "GPU": 1.0}).placement
    assert larger.resources == {"CPU": 2.0, "GPU": 1.0}
    assert larger.beside == ({"CPU": 2.0, "GPU": 0.0},) * 3
