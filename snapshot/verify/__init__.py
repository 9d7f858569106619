"""Verification of a cut: checks from the stored objects that it is consistent, complete and undamaged. Read-only."""
