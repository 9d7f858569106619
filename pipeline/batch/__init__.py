"""Computation of one stage's micro-batches, from the plan to the commit."""
