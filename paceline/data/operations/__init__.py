"""The steps of a plan: what is done to each block on its own."""
