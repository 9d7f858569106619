"""What this folder raises."""


class ProtocolError(Exception):
    """A step the protocol does not have. Whatever received it is unchanged; the caller has a bug.

    Attributes:
        what: What was being done.
        expected: What would have been legal.
        found: What came instead.
    """

    def __init__(self, what: str, expected: str, found: str) -> None:
        # All three go into `args`, so that the error survives pickling.
        super().__init__(what, expected, found)
        self.what = what
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"
