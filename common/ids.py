"""New ids. The library is loaded with the first of them: that takes 20 ms, and reading needs none."""


def new_id() -> str:
    """Return a ULID: its order is that of its time in ms; the rest is random."""
    from ulid import ULID

    return str(ULID())
