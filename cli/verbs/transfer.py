"""`slackwater export --iceberg`: write Iceberg tables once, or keep them up to date."""

from collections.abc import Collection

from ...common import instants
from ...common.whole_file import check_folder_name
from ...errors import Usage
from ..session import Session, repeat_when_due


def export_iceberg(
    session: Session, ref: str, root: str, tables: Collection[str], every_ms: int | None, keep_ms: int
) -> None:
    """Write Iceberg tables; with `every_ms`, repeatedly until Ctrl-C or SIGTERM, printing only changes."""
    from ...client.iceberg import IcebergTables
    from ...client.show.rows import iceberg_result
    from ...pipeline.run.stopping import stop_signals

    check_folder_name(root, "--iceberg")
    to = IcebergTables(session.client, ref, root, tables=tables, keep_ms=keep_ms)
    if every_ms is not None:
        to.check_ref_is_relative()

    def write(*, first: bool) -> None:
        cut = session.client.moment(ref, "exported").cut
        done = to.write(cut)
        if first:
            to.record(cut.app)
        if first or any(table.moved for table in done):
            session.show(iceberg_result(done, cut, ref, to.root))

    if every_ms is None:
        write(first=True)
        return
    with stop_signals() as stop, stop.interruptible():
        write(first=True)
        due_ms = instants.now_ms() + every_ms

        def again() -> None:
            nonlocal due_ms
            write(first=False)
            due_ms = max(due_ms + every_ms, instants.now_ms())

        repeat_when_due(session, stop, lambda: due_ms, again, fatal_errors=(Usage,))
