"""Another path to the extension point for frameworks."""

from paceline.run.backend import Backend, BackendConfig

__all__ = ["Backend", "BackendConfig"]
