"""Proposals of repairs for broken invariants: their text, and the channels on which they are sent."""
