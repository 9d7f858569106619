"""`slackwater export`: a moment as a DuckDB file that any DuckDB client opens."""

from contextlib import closing
from pathlib import Path

from .. import options
from ..session import Session, verb


@verb(
    "slackwater export flights@before-deploy out.duckdb",
    "slackwater export flights@-5m carriers.duckdb --table carriers --force",
)
def export(
    session: Session,
    ref: options.Ref,
    file: Path = options.argument("FILE", "The DuckDB file to write."),
    table: list[str] | None = options.option("NAME", "Only this table; may be repeated. Default: all of them."),
    force: bool = options.flag("--force", "Overwrite the file if it is there."),
) -> None:
    """Write the tables of a moment to a DuckDB file.

    They are tables, not views: any DuckDB client opens the file, without slackwater and without the store. The table
    _slackwater beside them names the moment, and the version of each stage. The file appears whole or not at all.
    """
    from ...results.rows import exported
    from ...snapshot.query.export import check_free
    from ...snapshot.query.export import export as write

    check_free(file, force=force)
    cut, _ = session.cut_around(ref, "exported")
    with closing(session.settings.open_cache()) as cache:
        written = write(session.store, cache, cut, ref, file, only=table or None, force=force)
    session.show(exported(written, cut, ref, file))
