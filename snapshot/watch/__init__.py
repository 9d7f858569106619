"""Standing invariants: what must always hold, evaluated beside a running app, and the moment at which all of it did.

Uses bisect to find out when one broke, as whoever looks at its verdict would. Nothing here slows the app down.
"""

__all__ = ["hook", "invariants", "last_good", "watcher"]
