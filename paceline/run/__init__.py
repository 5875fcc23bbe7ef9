"""One training run: from a RunSpec to a Result."""
