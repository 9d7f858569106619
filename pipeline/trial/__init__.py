"""A release tried on production's own traffic: clones, the programs run over what was read, and what differs."""
