"""Searchers by name, old module paths, and advice for those that are not here."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import paceline.tune.search as search
from paceline.air.errors import ConfigError
from paceline.tune.search import BasicVariantGenerator, HyperOptSearch, OptunaSearch, create_searcher


def test_searchers_have_names() -> None:
    searcher = create_searcher("optuna", metric="loss", mode="min")
    assert isinstance(searcher, OptunaSearch)
    assert searcher.metric == "loss"
    assert isinstance(create_searcher("hyperopt"), HyperOptSearch)
    assert isinstance(create_searcher("random", max_concurrent=2), BasicVariantGenerator)


def test_an_unknown_name_is_answered_with_the_likely_one() -> None:
    with pytest.raises(ConfigError, match=r"optuna\?"):
        create_searcher("optna")


@pytest.mark.parametrize(
    ("name", "searcher"),
    [
        ("ax", "AxSearch"),
        ("bayesopt", "BayesOptSearch"),
        ("bohb", "TuneBOHB"),
        ("dragonfly", "DragonflySearch"),
        ("hebo", "HEBOSearch"),
        ("nevergrad", "NevergradSearch"),
        ("sigopt", "SigOptSearch"),
        ("skopt", "SkOptSearch"),
        ("zoopt", "ZOOptSearch"),
        ("blendsearch", "BlendSearch"),
        ("cfo", "CFO"),
    ],
)
def test_others_are_answered_with_what_does_their_job(name: str, searcher: str) -> None:
    with pytest.raises(ImportError, match=rf"{searcher}.*OptunaSearch\("):
        create_searcher(name)
    with pytest.raises(AttributeError, match=rf"{searcher}.*OptunaSearch\("):
        getattr(search, searcher)
    module = "flaml" if name in ("blendsearch", "cfo") else name
    with pytest.raises(ImportError, match=rf"{searcher}.*OptunaSearch\("):
        exec(f"from paceline.tune.search.{module} import {searcher}")


def test_advised_samplers_exist() -> None:
    OptunaSearch(sampler="gp")
    OptunaSearch(sampler="nsga2")
    OptunaSearch(sampler="qmc")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("basic_variant", "BasicVariantGenerator"),
        ("concurrency_limiter", "ConcurrencyLimiter"),
        ("hyperopt", "HyperOptSearch"),
        ("optuna", "OptunaSearch"),
        ("repeater", "Repeater"),
        ("sample", "uniform"),
        ("searcher", "Searcher"),
        ("variant_generator", "generate_variants"),
    ],
)
def test_old_paths_lead_there(module: str, name: str) -> None:
    loaded = importlib.import_module(f"paceline.tune.search.{module}")
    assert getattr(search, module) is loaded
    assert getattr(search, name, getattr(loaded, name)) is getattr(loaded, name)
    assert module in dir(search)


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(AttributeError, match="'Nonsense'"):
        search.Nonsense  # noqa: B018


def test_importing_searchers_loads_no_library_of_theirs() -> None:
    code = (
        "import sys; from paceline.tune.search import OptunaSearch, HyperOptSearch, Searcher, create_searcher; "
        "heavy = {'optuna', 'hyperopt', 'numpy', 'pandas', 'scipy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
