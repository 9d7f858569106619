"""`slackwater export --iceberg`: a moment's tables as Iceberg tables, once or kept up to date."""

from collections.abc import Collection

from ... import instants
from ...errors import SlackwaterError, Usage
from ..session import Session

_RETRY_S = 5.0
"""After so long what failed is tried again."""


def export_iceberg(
    session: Session, ref: str, root: str, tables: Collection[str], every_ms: int | None, keep_ms: int
) -> None:
    """Write them; with `every_ms`, again and again until Ctrl-C or SIGTERM. What is the same then is not shown."""
    from ...client.iceberg import IcebergTables
    from ...pipeline.run.stopping import stop_signals
    from ...results.rows import iceberg_tables

    to = IcebergTables(session.client, ref, root, tables=tables, keep_ms=keep_ms)
    if every_ms is not None:
        to.check_moves()

    def write(*, first: bool) -> None:
        cut = session.client.moment(ref, "exported").cut
        done = to.write(cut)
        if first:
            to.record(cut.app)
        if first or any(each.moved for each in done):
            session.show(iceberg_tables(done, cut, ref, to.root))

    if every_ms is None:
        write(first=True)
        return
    with stop_signals() as stop, stop.at_once():
        write(first=True)
        last_error, due_ms = "", instants.now_ms() + every_ms
        while not stop.wait(max(0.0, (due_ms - instants.now_ms()) / 1_000)):
            try:
                write(first=False)
                last_error = ""
            except Usage:
                raise
            except SlackwaterError as error:
                # Storage will be there again; what was begun is finished by the next try.
                if error.message != last_error:
                    session.failure(error)
                    session.note(f"trying again every {_RETRY_S:g} s")
                last_error = error.message
                stop.wait(_RETRY_S)
                continue
            due_ms = max(due_ms + every_ms, instants.now_ms())
