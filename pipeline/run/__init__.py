"""A running app: check its program, claim its stages, start, watch and stop their queries, metrics."""
