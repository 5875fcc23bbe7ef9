"""What people look at: runs found below a path, their curves, their logs, and the run page."""
