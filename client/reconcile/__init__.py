"""A table beside somebody else's numbers, and why records are not in it: calls of the library, and the output."""
