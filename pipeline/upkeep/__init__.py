"""Background work of a stage: SST merges, prefetching, write stalls, and the input archive."""
