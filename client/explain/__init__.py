"""Output of `why` and `impact`."""
