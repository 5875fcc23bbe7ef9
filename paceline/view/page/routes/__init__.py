"""The routes of the page, by subject. Each file has a list `ROUTES`."""
