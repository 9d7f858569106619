"""Verbs that serve apps to others: serve, mcp, token."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ...client.declared.operations import TokenOptions
from ...common.extras import require_extras
from ...common.validation import find_program_file
from ...errors import Refused, Unavailable, Usage
from ..options import DRY_RUN, Repeated, argument, duration_option, flag, option, parse_pairs
from ..session import Session, group, verb

if TYPE_CHECKING:
    from ...serve.server import ListenOptions

_CODE = option("APP=FILE", "The program that ran, to replay down to the input record. May be repeated.", name="--code")
_VALUES = flag("--values", "Show values to agents. A token also needs the verb `values`.")
_AUDIT = option("FILE", "Append one JSON line per request; '-' is stderr.")
_SQL_TIME = duration_option("Time limit of a query. Default: 10s.", 10_000, min_ms=100)
_SQL_MEMORY = option("MIB", "Memory limit of a query, in MiB.", 512, min=64)
_PEM: Any = {"exists": True, "dir_okay": False}


@verb(
    "slackwater serve",
    "slackwater serve --host 0.0.0.0 --certificate tls.pem --key tls.key --audit audit.jsonl",
    "slackwater serve --advertise http://10.0.0.7:8350 --host 0.0.0.0     # one of several",
    "slackwater serve --mcp --code flights=flights.py      # for agents, too",
    "curl 'http://127.0.0.1:8350/apps/flights/at/now/tables/carriers?key=UA'",
    kafka=True,
    runs_long=True,
)
def serve(
    session: Session,
    host: str = option("ADDRESS", "Address to listen on. Other addresses require tokens.", "127.0.0.1"),
    port: int = option("PORT", "Port to listen on.", 8350, min=1, max=65_535),
    certificate: Path | None = option("FILE", "TLS certificate, PEM.", **_PEM),
    key: Path | None = option("FILE", "TLS key, PEM. Default: in the certificate's file.", **_PEM),
    client_ca: Path | None = option("FILE", "CA whose client certificates count as tokens, PEM.", **_PEM),
    tokens: bool = flag("--tokens", "Require a token on localhost as well."),
    advertise: str = option("URL", "URL at which other instances reach this one, to share the work.", ""),
    mcp: bool = flag("--mcp", "Also serve agents over the Model Context Protocol, at /mcp."),
    values: bool = _VALUES,
    code: Repeated = _CODE,
    audit: Path | None = _AUDIT,
    every: int = duration_option("How often to look for newer versions. Default: 250ms.", 250, min_ms=10),
    sql_time: int = _SQL_TIME,
    sql_memory: int = _SQL_MEMORY,
    sql_rows: int = option("N", "Row limit of a query.", 10_000, min=1),
    sql_processes: int = option("N", "Parallel queries per token.", 2, min=1),
) -> None:
    """Serve the apps of the store over HTTP.

    Clients on other machines need a token. Read-only unless a token grants more. Serves rows by key, SQL, the log,
    diffs, histories, snapshots and commits, at any moment. /openapi.json describes the API. Instances are stateless:
    run any number over one store.
    """
    if values and not mcp:
        raise Usage("--values applies to agents, and none are served", hint="add --mcp")
    require_extras("serve,agents" if mcp else "serve", "`slackwater serve`")
    from ...serve.audit import log_to_file
    from ...serve.server import ListenOptions, ServeInstance
    from ...serve.service import ServeOptions

    listening = ListenOptions(host, port, certificate, key, client_ca, needs_tokens=tokens, advertise=advertise)
    how: Any = {"sql_rows": sql_rows, "sql_processes": sql_processes, "programs": _programs(code)}
    options = ServeOptions(every / 1_000, sql_timeout_s=sql_time / 1_000, sql_memory_mb=sql_memory, **how)
    instance = ServeInstance(session.client, listening, options, with_agents=mcp, shows_values=values)
    if not listening.is_loopback:
        _check_reachable(session, listening)
    with log_to_file(audit):
        session.note(f"serving {instance}; Ctrl-C ends it")
        instance.run()


def _check_reachable(session: Session, listening: "ListenOptions") -> None:
    """Raise `Refused` if other machines can reach the server and no token exists; warn without TLS."""
    with suppress(Unavailable):  # the server starts even if the store is unreachable
        if not session.client.tokens():
            raise Refused(
                f"others can reach {listening.host}, so each request needs a token, and the store has none",
                hint="slackwater token add NAME --app APP makes one",
            )
    if listening.certificate is None:
        session.note(
            f"warning: tokens and rows cross the network unencrypted: {listening.host} is served without TLS; "
            "give --certificate FILE, or serve 127.0.0.1 behind a proxy that has TLS"
        )


@verb("slackwater mcp", "slackwater mcp --code flights=flights.py --values", kafka=True)
def mcp(
    session: Session,
    values: bool = _VALUES,
    code: Repeated = _CODE,
    audit: Path | None = _AUDIT,
    sql_time: int = _SQL_TIME,
    sql_memory: int = _SQL_MEMORY,
) -> None:
    """Serve the apps of the store to one agent over stdin and stdout.

    The agent starts it and speaks the Model Context Protocol. The tools are read-only, and values are hidden unless
    --values is given.
    """
    require_extras("serve,agents", "`slackwater mcp`")
    import asyncio

    from ...serve.agents.server import serve_stdio
    from ...serve.audit import log_to_file
    from ...serve.service import ServeOptions

    how: Any = {"sql_memory_mb": sql_memory, "programs": _programs(code)}
    with log_to_file(audit):
        asyncio.run(
            serve_stdio(session.client, ServeOptions(sql_timeout_s=sql_time / 1_000, **how), shows_values=values)
        )


def _programs(code: Repeated) -> dict[str, Path]:
    """Return the program file of each app. Raises `Usage` for a malformed option, `NotFound` if a file is missing."""
    files = {app: Path(file) for app, file in parse_pairs("--code", code, "APP=FILE", "flights=flights.py").items()}
    for file in files.values():
        find_program_file(file)
    return files


token = group(
    "Manage API tokens.",
    "slackwater token add reports --app flights --table carriers --verb read --verb sql",
    "slackwater token list",
)


@verb(
    "slackwater token add reports --app flights --table carriers --days 90",
    "slackwater token add admin --app '*' --verb read --verb sql",
    "slackwater token add grafana --app flights --certificate",
    parent=token,
    changes=True,
)
def add(
    session: Session,
    name: str = argument("NAME", "Name of the token."),
    app: list[str] = option("APP", "App that the token may read; '*' is any app. May be repeated.", ...),
    **options: Unpack[TokenOptions],
) -> None:
    session.show(session.client.add_token(name, app, **options))


@verb("slackwater token list", parent=token, name="list")
def list_(session: Session) -> None:
    """List the tokens of the store, their rights and who made them."""
    from ...client.show.maintenance import token_list_result

    session.show(token_list_result(session.client.tokens()))


@verb("slackwater token rm reports", parent=token, changes=True)
def rm(session: Session, name: str = argument("NAME", "Name of the token."), dry_run: bool = DRY_RUN) -> None:
    """Remove a token. Instances notice within five seconds."""
    session.show(session.client.remove_token(name, dry_run=dry_run))
