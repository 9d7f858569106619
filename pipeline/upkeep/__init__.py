"""Background work of a stage: SST merges, prefetching, write stalls, and counts of its store requests."""
