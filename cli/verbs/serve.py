"""Verbs that let others ask: serve, token."""

from pathlib import Path
from typing import Any

from ...errors import Refused, Usage
from ..options import DRY_RUN, Many, argument, flag, option, span
from ..session import Session, group, verb

_NEEDED = ("httptools", "pebble", "starlette", "uvicorn", "uvloop")
_PEM: Any = {"exists": True, "dir_okay": False}


@verb(
    "slackwater serve",
    "slackwater serve --host 0.0.0.0 --certificate tls.pem --key tls.key --audit audit.jsonl",
    "slackwater serve --advertise http://10.0.0.7:8350 --host 0.0.0.0     # one of several",
    "curl 'http://127.0.0.1:8350/apps/flights/at/now/tables/carriers?key=UA'",
    kafka=True,
    goes_on=True,
)
def serve(
    session: Session,
    host: str = option("ADDRESS", "Listen here; others than this machine need a token.", "127.0.0.1"),
    port: int = option("PORT", "And on this port.", 8350, min=1, max=65_535),
    certificate: Path | None = option("FILE", "TLS: the certificate, PEM.", **_PEM),
    key: Path | None = option("FILE", "TLS: its key, where it is not in the same file.", **_PEM),
    client_ca: Path | None = option("FILE", "Whose certificates are taken in the place of tokens, PEM.", **_PEM),
    tokens: bool = flag("--tokens", "Want a token from this machine, too."),
    advertise: str = option("URL", "Where other instances of this store reach this one.", ""),
    audit: Path | None = option("FILE", "Append a line of JSON for each request; '-' is standard error."),
    every: int = span("Look so often for newer versions. Default: 250ms.", 250, least_ms=10),
    sql_time: int = span("What a query may take. Default: 10s.", 10_000, least_ms=100),
    sql_memory: int = option("MIB", "Memory that a query may take, in MiB.", 512, min=64),
    sql_rows: int = option("N", "Rows that a query may return.", 10_000, min=1),
    sql_processes: int = option("N", "Queries that are carried out at a time.", 2, min=1),
) -> None:
    """Serve the apps of the store over HTTP, to whoever has a token; on this machine, to anybody.

    Rows by key, SQL, the log, differences, histories, snapshots, and commits as they come, of any app at any moment;
    each answer says how fresh it is. /openapi.json describes it. An instance keeps nothing that the store has not: any
    number of them serve the same store, and find each other there (--advertise). It only reads.
    """
    from importlib.util import find_spec

    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise Refused(f"a server needs {', '.join(missing)}", hint="pip install 'slackwater[serve]'")
    from ...serve.audit import write_to
    from ...serve.server import Listening, ServeInstance
    from ...serve.service import ServeOptions

    listening = Listening(host, port, certificate, key, client_ca, needs_tokens=tokens, advertise=advertise)
    how: Any = {"sql_rows": sql_rows, "sql_processes": sql_processes}
    options = ServeOptions(every / 1_000, sql_s=sql_time / 1_000, sql_memory_mb=sql_memory, **how)
    instance = ServeInstance(session.client, listening, options)
    with write_to(audit):
        session.note(f"serving {instance}; Ctrl-C ends it")
        instance.run()


token = group(
    "Say who may read what over HTTP.",
    "slackwater token add reports --app flights --table carriers --verb read --verb sql",
    "slackwater token list",
)


@verb(
    "slackwater token add reports --app flights --table carriers --days 90",
    "slackwater token add admin --app '*' --verb read --verb sql",
    "slackwater token add grafana --app flights --certificate",
    of=token,
    changes=True,
)
def add(
    session: Session,
    name: str = argument("NAME", "What it is called."),
    app: list[str] = option("APP", "May read this app, '*' any; may be repeated.", ...),
    table: Many = option("TABLE", "May read this table; may be repeated. Default: all."),
    verb_: Many = option("VERB", "May do this: read, or sql; may be repeated. Default: read.", name="--verb"),
    per_second: int = option("N", "Requests a second that each instance answers; 0 for any number.", 0, min=0),
    days: int = option("N", "It ends after so many days; 0 for never.", 0, min=0, max=36_500),
    certificate: bool = flag("--certificate", "For whoever comes with a certificate of this common name, instead."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Make a token. It is shown once; the store keeps its hash."""
    how: Any = {"per_s": per_second, "days": days, "certificate": certificate, "dry_run": dry_run}
    session.show(session.client.add_token(name, app, tables=table or ("*",), verbs=_verbs(verb_ or ["read"]), **how))


def _verbs(given: list[str]) -> Any:
    from ...validation import nearest

    for each in given:
        if each not in ("read", "sql"):
            raise Usage(f"{each!r} is no verb of a token{nearest(each, ('read', 'sql'))}", hint="read or sql")
    return tuple(dict.fromkeys(given))


@verb("slackwater token list", of=token, name="list")
def list_(session: Session) -> None:
    """Show the tokens of the store: what each may read, and who made it."""
    from ...results.maintenance import tokens

    session.show(tokens(session.client.tokens()))


@verb("slackwater token rm reports", of=token, changes=True)
def rm(session: Session, name: str = argument("NAME", "The token."), dry_run: bool = DRY_RUN) -> None:
    """Remove a token. Instances hear of it within five seconds."""
    session.show(session.client.remove_token(name, dry_run=dry_run))
