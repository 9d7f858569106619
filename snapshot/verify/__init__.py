"""Verification of a cut: everything that can be computed from stored objects is computed again. Read-only."""
