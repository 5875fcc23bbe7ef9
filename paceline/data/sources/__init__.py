"""Where rows come from: one file per format, and what they share (listing, file_source, lines)."""
