"""What people look at: runs found below a path, their curves, their logs, and the run page."""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

with lazy_imports(__name__):
    from paceline.view.page.start import PageServer, dash

__all__ = ["PageServer", "dash"]
