"""Old path of a scheduler that is only half of a method; the other half is not here."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name == "HyperBandForBOHB":
        raise ImportError(
            "HyperBandForBOHB works only together with the TuneBOHB searcher, which paceline does not have. The same "
            "idea, a model that guides the search and early stopping of bad trials, is TuneConfig("
            "search_alg=OptunaSearch(), scheduler=HyperBandScheduler()), or ASHAScheduler() instead of the latter.",
            name=__name__,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
