"""What the `setup_*` functions share, which users call inside of a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from paceline.air import session
from paceline.trackers.values import shown_config


class Place(NamedTuple):
    """Where in a run this code is; the defaults hold outside of one."""

    rank: int = 0
    trial_id: str | None = None
    trial_name: str | None = None
    experiment_name: str | None = None

    @classmethod
    def here(cls) -> Place:
        found = session.current()
        if found is None:
            return cls()
        return cls(found.world_rank, found.trial_id, found.trial_name, found.experiment_name)

    @property
    def key(self) -> str | None:
        """The same for every attempt of a run; None outside of one."""
        name = f"{self.experiment_name}/{self.trial_id}"
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest() if self.trial_id else None


def at_end(call: Callable[[bool], None]) -> None:
    """Have this called when the train function has ended, with whether it failed; outside of a run it never is."""
    session.active().at_end.append(call)


def split_config(config: Mapping[str, Any] | None, service: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A configuration as it may be shown, and the settings that older programs keep in it under the service's name."""
    given = dict(config or {})
    settings = given.pop(service, None)
    return shown_config(given), dict(settings) if isinstance(settings, Mapping) else {}
