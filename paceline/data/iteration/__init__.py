"""From a plan to batches: reading ahead, shuffling, cutting, converting."""
