"""Verification of a cut: recomputes everything that follows from the stored objects. Read-only."""
