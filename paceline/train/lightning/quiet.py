"""Keeps out of the workers' output what Lightning says in every run and the user can do nothing about."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_ONLY_OUR_SAVER_IS_MISSING = r".*Please add the following callbacks: \[[\"']ReportingModelCheckpoint\{[^{}]*\}[\"']\]"


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without the tip for a logging service, and PyTorch's word that Lightning uses an old function.

    Also without its wish for the ModelCheckpoint that saved what a run goes on from: other rules for saving may be
    given, and which checkpoints were the best in another run is not asked for.
    """
    from lightning_utilities.core import rank_zero

    rank_zero.log.addFilter(_is_no_tip)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", _ONLY_OUR_SAVER_IS_MISSING)
            yield
    finally:
        rank_zero.log.removeFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "litlogger" not in str(record.msg)
