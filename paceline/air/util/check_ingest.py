"""Old path of DummyTrainer, which reads datasets as a trainer does, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.compat.check_ingest import DummyTrainer as DummyTrainer
    from paceline.compat.check_ingest import make_local_dataset_iterator as make_local_dataset_iterator

__path__: list[str] = []  # so that import statements repeat the advice, see air/absent.py
__all__ = ["DummyTrainer", "make_local_dataset_iterator"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise no_such_name(__name__, name)
    from paceline.compat import check_ingest

    return getattr(check_ingest, name)


def __dir__() -> list[str]:
    return __all__
