"""Proving that a cut is what it claims, by recomputing it from the objects. Changes nothing."""

__all__ = ["findings", "flights", "intact", "kept", "ledger", "marked", "sst_rows", "succession", "verify"]
