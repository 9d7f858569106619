"""What must always hold of an app: a predicate, how often it is asked, and what is called when it does not hold."""

from dataclasses import dataclass, replace

from ...errors import Usage
from ...store.objects.protocol import ObjectStore
from ..bisect.check import check


@dataclass(frozen=True, slots=True)
class Invariant:
    """A standing invariant, as `[invariants.NAME]` of `slackwater.toml` says it."""

    name: str
    where: str
    """SQL over the app's tables that returns rows when it does not hold; empty while it is a `check`."""
    every_ms: int
    on_failure: str = ""
    """A command line for the shell, called when it has begun to fail; empty for none."""
    app: str = ""
    """The only app of which it must hold; empty for any."""
    check: str = ""
    """The condition that must hold instead, as `bisect --check` takes it."""
    table: str = ""
    """Which table the condition is over, where its columns do not say."""

    def __post_init__(self) -> None:
        if self.every_ms <= 0:
            raise Usage(f"invariant {self.name!r}: it is asked every {self.every_ms} ms; expected a longer span")

    def of(self, store: ObjectStore, app: str) -> "Invariant":
        """The same with a query in place of a condition, which the app's tables complete. Raises as `check` does."""
        return replace(self, where=check(store, app, self.check, self.table).sql) if self.check else self
