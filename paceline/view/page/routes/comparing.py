"""Several runs beside each other: the configurations, only where they differ."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from paceline.view.compare import aligned, differs
from paceline.view.facts import users_config
from paceline.view.page.answers import answering, ids_in
from paceline.view.page.state import PageState


def compare(state: PageState, request: Request) -> Any:
    ids = ids_in(request)
    values = aligned({id: _config(state, id) for id in ids})
    different = {key: each for key, each in values.items() if differs(each, len(ids))}
    runs = [msgspec.structs.asdict(state.line(id)) for id in ids]
    return {"runs": runs, "differing": different, "same": len(values) - len(different)}


def _config(state: PageState, id: str) -> dict[str, Any]:
    """What the training function got, and on how many workers; of a trial, this is what its search chose, too."""
    facts = state.facts(id)
    return {**(users_config(facts) or {}), "scaling_config": facts.settings.get("scaling_config") or {}}


ROUTES = [Route("/api/compare", answering(compare))]
