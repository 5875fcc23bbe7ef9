"""Where workers live; knows nothing about training."""
