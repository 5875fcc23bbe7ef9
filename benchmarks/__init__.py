"""Side-by-side measurements of paceline and its peers. Run with `make bench`."""
