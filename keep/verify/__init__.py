"""Proving that a cut is what it claims, by recomputing it from the objects. Changes nothing."""

__all__ = ["captured", "ledger", "markers", "report", "sst", "verify", "version_chain"]
