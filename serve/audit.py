"""Audit log of a server: one JSON line per request, without key values and SQL literals.

Lines are kept after `slackwater forget`, so they hold the number of keys but no key.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..client.show.shown import encoded
from ..common.instants import iso, now_ms
from ..snapshot.query.clauses import words

AUDIT = logging.getLogger("slackwater.audit")
"""Logger of the audit log; lines have the level INFO."""
_SQL = ("sql", "where", "check")
_HIDDEN = ("string", "number", "escaped", "dollars", "open")


@contextmanager
def write_to(file: Path | None) -> Iterator[None]:
    """Append audit lines to a file during the context; `-` is standard error, None is no log."""
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
    action: str, host: str, who: str, arguments: Mapping[str, object], status: int, rows: int | None, took_s: float
) -> None:
    """Log a request, if the audit log is enabled; `rows` is None for a stream that has not ended."""
    if not AUDIT.isEnabledFor(logging.INFO):
        return
    shown_arguments = {name: _shown(name, value) for name, value in arguments.items() if value not in ("", [])}
    line = {
        "time": iso(now_ms(), "milliseconds"),
        "who": who,
        "from": host,
        "what": action,
        "asked": shown_arguments,
        "status": status,
        "rows": rows,
        "ms": round(took_s * 1_000, 1),
    }
    AUDIT.info(encoded(line).decode())


def _shown(name: str, value: object) -> object:
    if name in ("key", "keys"):
        return len(value) if isinstance(value, list) else 1
    return without_values(value) if name in _SQL and isinstance(value, str) else value


def without_values(sql: str) -> str:
    """Return a SQL statement with `?` in place of each string and number."""
    return " ".join("?" if token.kind in _HIDDEN else sql[token.start : token.end] for token in words(sql))
