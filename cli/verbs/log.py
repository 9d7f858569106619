"""`slackwater log`: the commits of an app, and what people did to it."""

from typing import TYPE_CHECKING, Annotated

import typer

from ...settings import load
from .. import humane, options
from ..output import Part, output_for
from ..tables import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...snapshot.query.log import Entry
    from ...snapshot.take.audit_log import Operation

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command(
    epilog=options.examples(
        "slackwater log flights",
        "slackwater log flights --stage carriers --limit 5",
        "slackwater log flights --operations",
    )
)
def log(
    app_name: options.App,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Show this many; 0 for all.")] = 20,
    stage: Annotated[str, typer.Option(metavar="NAME", help="Only this stage.", show_default=False)] = "",
    operations: Annotated[
        bool, typer.Option("--operations", help="Show what was done to the app, by whom, not its commits.")
    ] = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Show the commits of an app, newest first.

    Each with its rows, the offsets it read (from the first up to, not including, the second), and the
    snapshots it is part of. --operations shows instead who took, removed or cloned what.
    """
    from ...snapshot.query.log import entries
    from ...snapshot.take.audit_log import list_operations
    from ...store.versions.apps import read_app

    output, opened = output_for(json=as_json), load(store=store).open_store()
    if operations:
        read_app(opened, app_name)
        done = list_operations(opened, app_name, limit)
        output.show(done, _operations(done, app_name))
    else:
        commits = entries(opened, app_name, limit, stage=stage)
        output.show(commits, _commits(commits, app_name))


def _commits(commits: "tuple[Entry, ...]", app_name: str) -> Part:
    if not commits:
        return f"{app_name} has no commit yet; `slackwater run FILE` makes them"
    now_ms = humane.now_ms()
    return Grid.of(
        ("committed", "stage", ">version", "kind", ">rows", ">took", "snapshots", "read"),
        (
            (
                humane.when(entry.time_ms, now_ms),
                entry.stage,
                f"v{entry.version}",
                entry.kind,
                *_work(entry),
                ", ".join(entry.snapshots),
                humane.windows(map(str, entry.windows)) or "; ".join(_lost(entry)),
            )
            for entry in commits
        ),
    )


def _lost(entry: "Entry") -> "Iterator[str]":
    """What a claim went on without."""
    for lost in entry.lost.values():
        windows = (
            f"{lost.topic}[{partition}] {start}..{end}"
            for partition, (start, end) in enumerate(zip(lost.starts, lost.ends, strict=False))
            if start < end
        )
        versions = f", v{lost.after + 1} to v{lost.up_to} of its writer" if lost.up_to else ""
        rows = f" ({humane.plural(sum(lost.rows), 'row')}{versions})" if lost.rows else ""
        yield f"lost {humane.windows(windows)}{rows}"


def _work(entry: "Entry") -> tuple[str, str]:
    """The rows that it read, and how long that took; of versions that are there for something else, neither."""
    if entry.kind in ("compaction", "rescale", "retire"):
        return "-", "-"
    return humane.count(entry.rows_in), humane.duration(entry.duration_ms)


def _operations(done: "tuple[Operation, ...]", app_name: str) -> Part:
    if not done:
        return f"nothing was done to {app_name} from the command line yet"
    now_ms = humane.now_ms()
    return Grid.of(
        ("done", "what", "detail", "by"),
        ((humane.when(each.time_ms, now_ms), each.verb, each.detail, each.by) for each in done),
    )
