"""A module whose import fails."""

raise RuntimeError("this module is broken on purpose")
