"""DuckDB's own page in a browser, over an exported moment. Its extension `ui` comes from DuckDB's servers, once."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb

from ...errors import Unavailable

_HINT = "`slackwater export REF out.duckdb` writes the file that the page would show; any DuckDB client opens it"


def check_page() -> None:
    """See that the page can be had, before anything is written for it. Raises `Unavailable` as `load`."""
    with closing(duckdb.connect()) as con:
        load(con)


@contextmanager
def page(path: Path) -> Iterator[str]:
    """The page over a DuckDB file, opened in the user's browser where there is one. Gives DuckDB's words about it.

    It is served by this process, to this machine only, up to the end of the block.

    Raises:
        Unavailable: it cannot be had.
    """
    with closing(duckdb.connect(str(path))) as con:
        load(con)
        try:
            started = con.execute("CALL start_ui()").fetchone()
        except duckdb.Error as error:
            raise Unavailable(f"DuckDB's page does not start: {_sentence(error)}", hint=_HINT) from error
        try:
            yield str(started[0]) if started else ""
        finally:
            con.execute("CALL stop_ui_server()")


def load(con: duckdb.DuckDBPyConnection) -> None:
    """Give a connection the extension: from this machine, else from DuckDB's servers.

    Raises:
        Unavailable: it is not on this machine, and cannot be fetched.
    """
    try:
        con.load_extension("ui")
    except duckdb.Error:
        try:
            con.install_extension("ui")
            con.load_extension("ui")
        except duckdb.Error as error:
            raise Unavailable(
                f"DuckDB's extension `ui` is not on this machine and cannot be fetched: {_sentence(error)}", hint=_HINT
            ) from error


def _sentence(error: duckdb.Error) -> str:
    return str(error).strip().partition("\n")[0]
