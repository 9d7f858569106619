"""`slackwater get`: one row by its key."""

from ...results import formats
from .. import options
from ..session import Session, verb


@verb(
    "slackwater get flights carriers UA",
    "slackwater get flights@-1h aircraft N14228 --verbose",
    """slackwater get shop baskets '{"country": "DE", "number": 17}'""",
)
def get(
    session: Session,
    ref: options.Ref,
    table: options.Table,
    key: options.Key,
    verbose: bool = options.flag("--verbose", "Also say what was read for it.", "-v"),
) -> None:
    """Print the row of one key.

    Reads only the parts of the state that can hold it. Exits with 1 when the key is not there.
    """
    from ...results import values
    from ...results.rows import row as shown
    from ...snapshot.cut.names import having
    from ...snapshot.cut.resolve import telling_if_collected
    from ...snapshot.query import get as lookup
    from ...store.objects.counting import CountingStore

    cut, _ = session.cut_around(ref, "read")
    counted = CountingStore(session.store)
    with telling_if_collected(counted, cut):
        cut = having(counted, cut, (table,))
        row = lookup.get(counted, cut, table, options.key_values(key))
    session.note_name(ref, table, cut.tables[table].stage)
    state_bytes = sum(sst.bytes for sst in cut.tables[table].ssts)
    read = {"requests": counted.requests, "bytes": counted.bytes_read, "table_bytes": state_bytes}
    (found,) = values.rows(row) or (None,)
    notes = [f"table {table} of {cut.ref} has no key {' '.join(key)}"] if found is None else []
    if verbose:
        what = formats.plural(counted.requests, "request")
        notes.append(f"read {formats.size(counted.bytes_read)} of {formats.size(state_bytes)} in {what}")
    session.show(shown(found, cut, read, notes))
