"""What every HTTP server of paceline has: access, limits, connections, the server itself."""
