"""Proposals of repairs for broken invariants: their text, and the channels that deliver them."""
