"""Where a run's files live, and how they get there without ever being half there."""
