"""`slackwater get`: one row by its key."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...settings import load
from .. import humane, options, thinned
from ..output import Output, output_for
from ..tables import Grid

if TYPE_CHECKING:
    import pyarrow as pa

    from ...snapshot.cut.graph import Thinned

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_NULL = r"\N"
"""How a key that is null is written, as in the dumps of databases."""


@app.command(
    epilog=options.examples(
        "slackwater get flights carriers UA",
        "slackwater get flights@-1h aircraft N14228 --verbose",
        """slackwater get shop baskets '{"country": "DE", "number": 17}'""",
    )
)
def get(
    ref: options.Ref,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False)],
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY",
            help=r"The values of the key columns, in their order; \N is null, bytes are hexadecimal, a struct is JSON.",
            show_default=False,
        ),
    ],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also tell what was read for it.")] = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Print the row of one key.

    Reads only the parts of the state that can hold it. Exits with 1 when the key is not there.
    """
    from ...snapshot.cut.resolve import resolve_around, telling_if_collected
    from ...snapshot.query import get as lookup
    from ...store.objects.counting import CountingStore

    output, opened = output_for(json=as_json), CountingStore(load(store=store).open_store())
    cut, damage = resolve_around(opened, ref, now_ms=humane.now_ms())
    if damage is not None:
        output.note(f"only {', '.join(cut.stages)} is read, by itself: {damage.message}")
    thinned.tell(output, ref, cut.thinned)
    opened.reset()
    with telling_if_collected(opened, cut):
        row = lookup.get(opened, cut, table, [None if value == _NULL else value for value in key])
    state_bytes = sum(sst.bytes for sst in cut.tables[table].ssts)
    read = {"requests": opened.requests, "bytes": opened.bytes_read, "table_bytes": state_bytes}
    _show(output, row, read, cut.thinned, f"table {table} of {cut.ref} has no key {' '.join(key)}")
    if verbose:
        output.note(
            f"read {humane.size(read['bytes'])} of {humane.size(state_bytes)} "
            f"in {humane.plural(read['requests'], 'request')}"
        )
    if not row.num_rows:
        raise typer.Exit(1)


def _show(output: Output, row: "pa.Table", read: dict[str, int], instead: "Thinned | None", absent: str) -> None:
    from .. import values

    (found,) = values.rows(row) or (None,)
    data: dict[str, Any] = {"found": found is not None, "row": found, "read": read, "thinned_out": instead}
    if found is None:
        output.show(data)
        output.note(absent)
    else:
        output.show(data, Grid.of(("column", "value"), ((k, values.word(v)) for k, v in found.items())))
