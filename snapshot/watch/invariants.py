"""What must always hold of an app: a predicate, how often it is asked, and what is called when it does not hold."""

from dataclasses import dataclass

from ...errors import Usage


@dataclass(frozen=True, slots=True)
class Invariant:
    """A standing invariant, as `[invariants.NAME]` of `slackwater.toml` says it."""

    name: str
    where: str
    """SQL over the app's tables that returns rows when it does not hold."""
    every_ms: int
    on_failure: str = ""
    """A command line for the shell, called when it has begun to fail; empty for none."""
    app: str = ""
    """The only app of which it must hold; empty for any."""

    def __post_init__(self) -> None:
        if self.every_ms <= 0:
            raise Usage(f"invariant {self.name!r}: it is asked every {self.every_ms} ms; expected a longer span")


def where_of_check(check: str) -> str:
    """The query that returns a row for each time that a condition is false; as with CHECK in SQL, null holds.

    The condition is what stands behind SELECT, with a FROM of its own or with subqueries.
    """
    return f"SELECT * FROM (SELECT {check}) AS checked(holds) WHERE NOT holds"
