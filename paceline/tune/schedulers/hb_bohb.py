"""Old path of a scheduler that is only half of a method; the other half does not exist here."""

from __future__ import annotations

from paceline.air.absent import advise

ADVICE = {
    "HyperBandForBOHB": "it works only together with the TuneBOHB searcher, which paceline does not have. The same "
    "idea, a model that guides the search and early stopping of bad trials, is TuneConfig("
    "search_alg=OptunaSearch(), scheduler=HyperBandScheduler()), or ASHAScheduler() instead of the latter"
}

advise(__name__, ADVICE)
