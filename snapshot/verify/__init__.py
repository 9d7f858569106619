"""Proving that a cut is what it claims, by recomputing it from the objects. Changes nothing."""
