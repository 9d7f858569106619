"""Who may what: grants, as tokens and certificates name them, and how fast."""

from dataclasses import dataclass

from .declare import Verb
from .errors import Denied

ALL = "*"


@dataclass(frozen=True, slots=True)
class Grant:
    """What whoever asks may do."""

    name: str
    """Of the token; empty for somebody on this machine."""
    apps: frozenset[str] = frozenset({ALL})
    tables: frozenset[str] = frozenset({ALL})
    verbs: frozenset[str] = frozenset({"read", "sql"})
    per_s: int = 0
    """Requests a second; 0 for any number."""

    def check(self, verb: Verb) -> None:
        """Raise `Denied` unless it may do that."""
        if verb not in self.verbs:
            raise Denied(
                f"token {self.name!r} may not {verb}", hint="slackwater token add NAME --verb … makes one that may"
            )

    def check_app(self, app: str) -> None:
        """Raise `Denied` unless it may read the app."""
        if not self.may_read_app(app):
            raise Denied(f"token {self.name!r} may not read app {app!r}")

    def may_read_app(self, app: str) -> bool:
        """Whether it may read the app."""
        return bool({ALL, app} & self.apps)

    def check_all_tables(self, what: str) -> None:
        """Raise `Denied` unless it may read any table, as `what` tells of all."""
        if ALL not in self.tables:
            raise Denied(f"token {self.name!r} may read some tables, and {what} tells of all")

    def check_table(self, table: str) -> None:
        """Raise `Denied` unless it may read tables of that name."""
        if not self.may_read(table):
            raise Denied(f"token {self.name!r} may not read table {table!r}")

    def may_read(self, table: str) -> bool:
        """Whether it may read tables of that name."""
        return bool({ALL, table} & self.tables)
