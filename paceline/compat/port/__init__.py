"""Changes programs written for Ray so that they use paceline: what ``paceline port`` does."""
