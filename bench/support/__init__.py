"""Shared code of the benchmarks: input events, peers, table rows, memory, the plot."""
