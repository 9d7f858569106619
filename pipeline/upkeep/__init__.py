"""Background work of a stage: SST merges, prefetching, write stalls, and metering of the store."""
