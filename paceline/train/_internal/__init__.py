"""Old paths that backends written for Ray Train import from, because its guide did."""
