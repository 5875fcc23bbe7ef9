"""One search."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from paceline.view.page.answers import answering
from paceline.view.page.importances import STILL_COMPUTED
from paceline.view.page.state import PageState
from paceline.view.searches import best_so_far, space_of, unbeaten
from paceline.web.problem import Problem


def search(state: PageState, request: Request) -> Any:
    id = request.path_params["id"]
    found = state.listing.search(id)
    if found is None:
        state.place(id)  # a Problem if there is nothing of that id at all
        raise Problem(404, "This is not a search.")
    reply = state.importances.get(id, found)
    ids = state.listing.ids
    return {
        **msgspec.structs.asdict(state.line(id)),
        "space": space_of(found, state.filesystem),
        "importance": reply.importances,
        "why": reply.why,
        "pending": reply.why == STILL_COMPUTED,
        "best_so_far": [(moment, value, ids.get(trial.path)) for moment, value, trial in best_so_far(found)],
        "pareto": [ids.get(trial.path) for trial in unbeaten(found)],
        "continue": found.how_to_continue,
    }


ROUTES = [Route("/api/search/{id}", answering(search))]
