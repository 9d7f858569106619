"""Audit log of a server: one JSON line per request, without key values and SQL literals.

`slackwater forget` cannot change the log, so a line has the number of keys but no key.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..client.show.shown import encode_json
from ..common.instants import format_iso, now_ms
from ..snapshot.query.clauses import tokenize

AUDIT = logging.getLogger("slackwater.audit")
"""Logger of the audit log; lines have the level INFO."""
_SQL_ARGUMENTS = ("sql", "where", "check")
_LITERAL_KINDS = ("string", "number", "escaped", "dollars", "open")


@contextmanager
def log_to_file(file: Path | None) -> Iterator[None]:
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


def log_request(
    action: str, host: str, who: str, arguments: Mapping[str, object], status: int, rows: int | None, elapsed_s: float
) -> None:
    """Log a request, if the audit log is enabled; `rows` is None for a stream that has not ended."""
    if not AUDIT.isEnabledFor(logging.INFO):
        return
    shown_arguments = {name: _redact(name, value) for name, value in arguments.items() if value not in ("", [])}
    line = {
        "time": format_iso(now_ms(), "milliseconds"),
        "who": who,
        "from": host,
        "what": action,
        "asked": shown_arguments,
        "status": status,
        "rows": rows,
        "ms": round(elapsed_s * 1_000, 1),
    }
    AUDIT.info(encode_json(line).decode())


def _redact(name: str, value: object) -> object:
    if name in ("key", "keys"):
        return len(value) if isinstance(value, list) else 1
    return redact_sql(value) if name in _SQL_ARGUMENTS and isinstance(value, str) else value


def redact_sql(sql: str) -> str:
    """Return a SQL statement with `?` in place of each string and number."""
    return " ".join("?" if token.kind in _LITERAL_KINDS else sql[token.start : token.end] for token in tokenize(sql))
