"""One line of JSON for each request: who asked for what, and what came of it. Values of keys and in SQL are left out.

A line outlives what is forgotten (`slackwater forget`): what it has of a key is how many there were.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..client.show.shown import encoded
from ..common.instants import iso, now_ms
from ..snapshot.query.clauses import words

AUDIT = logging.getLogger("slackwater.audit")
"""At INFO; whoever wants the lines gives it a handler."""
_SQL = ("sql", "where", "check")
_HIDDEN = ("string", "number", "escaped", "dollars", "open")


@contextmanager
def write_to(file: Path | None) -> Iterator[None]:
    """Have lines appended to a file, or to standard error for `-`; None for nowhere."""
    if file is None:
        yield
        return
    handler = logging.StreamHandler() if str(file) == "-" else logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    AUDIT.addHandler(handler)
    AUDIT.setLevel(logging.INFO)
    AUDIT.propagate = False
    try:
        yield
    finally:
        AUDIT.removeHandler(handler)
        AUDIT.setLevel(logging.NOTSET)
        handler.close()


def write(
    what: str, host: str, who: str, found: Mapping[str, object], status: int, rows: int | None, took_s: float
) -> None:
    """Write the line of a request, if somebody wants it; `rows` is None where more may come."""
    if not AUDIT.isEnabledFor(logging.INFO):
        return
    asked = {name: _shown(name, value) for name, value in found.items() if value not in ("", [])}
    about = {
        "time": iso(now_ms(), "milliseconds"),
        "who": who,
        "from": host,
        "what": what,
        "asked": asked,
        "status": status,
        "rows": rows,
        "ms": round(took_s * 1_000, 1),
    }
    AUDIT.info(encoded(about).decode())


def _shown(name: str, value: object) -> object:
    if name in ("key", "keys"):
        return len(value) if isinstance(value, list) else 1
    return without_values(value) if name in _SQL and isinstance(value, str) else value


def without_values(sql: str) -> str:
    """A statement with `?` in the place of each string and number."""
    return " ".join("?" if each.kind in _HIDDEN else sql[each.start : each.end] for each in words(sql))
