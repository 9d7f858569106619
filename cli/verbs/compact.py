"""`slackwater compact`: merging the SSTs of an app's tables in a process of its own."""

import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import SlackwaterError, Unavailable, Usage
from ...settings import load
from .. import humane, options
from ..output import Output, Part, output_for
from ..tables import Grid, Title

if TYPE_CHECKING:
    from ...snapshot.maintain.compact import AppCompactor, Compacted, Merge
    from ...store.versions.manifest import Manifest

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_NICE = 10


@app.command(
    epilog=options.examples(
        "slackwater compact flights --dry-run",
        "slackwater compact flights --stage carriers --full",
        "slackwater compact flights --watch --threads 2     # beside: slackwater run flights.py --compaction external",
    )
)
def compact(
    app_name: options.App,
    stage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only the table of this stage; may be repeated. Default: all tables."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on for ever, merging what becomes due, until Ctrl-C or SIGTERM.")
    ] = False,
    every: Annotated[
        int, options.span("How often --watch looks. Default: 5s.", least_ms=100, bare_seconds=True)
    ] = 5_000,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Merges that go on at once.", show_default=True)] = 1,
    full: Annotated[
        bool, typer.Option("--full", help="Merge everything of each state partition into one run, due or not.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be merged; change nothing.")] = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Merge the SSTs of an app's tables, as the policy of each table calls for.

    What is merged is committed as versions of their own, which change no row. The app may run meanwhile; when a batch
    is committed first, the result is put into the version after it. This process gives way to others on the machine.
    """
    from ...pipeline.run.stopping import stop_signals
    from ...snapshot.maintain.compact import AppCompactor, merged_last, plan
    from ...snapshot.take.audit_log import record, whoami

    if watch and (full or dry_run):
        raise Usage(f"--watch and {'--full' if full else '--dry-run'} exclude each other")
    settings, output, wanted = load(store=store), output_for(json=as_json), tuple(stage or ())
    opened, by = settings.open_store(), whoami()
    if dry_run:
        due = plan(opened, app_name, wanted, full=full)
        output.show({"app": app_name, "dry_run": True, "merges": due}, *_planned(app_name, due))
        return
    # Not everywhere can a process give way.
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    # Only what watches ends in order; else these end the process as always.
    with stop_signals() if watch else nullcontext(threading.Event()) as stop:
        compactor = AppCompactor(
            opened,
            settings.open_cache(),
            app_name,
            wanted,
            by=by,
            threads=threads,
            now_ms=humane.now_ms,
            stop=stop,
        )
        if watch:
            plan(opened, app_name, wanted)  # refuses what there is nothing to watch of
            record(opened, app_name, "compact", f"--watch, {', '.join(wanted) or 'all tables'}", by)
            _watch(compactor, output, app_name, every / 1_000, stop)
            return
        done: list[Compacted] = []
        with output.progress() as tell:
            for each in compactor.look(full=full):
                done.append(each)
                tell(_line(each))
    if done:
        versions = ", ".join(f"{each.stage}@v{each.version}" for each in done)
        record(opened, app_name, "compact", f"--full, {versions}" if full else versions, by)
    earlier = () if done else merged_last(opened, app_name, wanted)
    data = {"app": app_name, "dry_run": False, "versions": done, "done_already": bool(earlier)}
    output.show(data, *_parts(app_name, done, earlier))


def _watch(compactor: "AppCompactor", output: Output, app_name: str, every_s: float, stop: threading.Event) -> None:
    def put_off(stage: str, error: Exception) -> None:
        # The other tables are merged all the same.
        output.note(f"compaction of {app_name}/{stage} put off; trying again in {every_s:g} s")
        if isinstance(error, SlackwaterError):
            output.error(error)
        else:
            output.bug(error)

    while not stop.is_set():
        try:
            for each in compactor.look(failed=put_off):
                output.show(each, _line(each))
        except Unavailable as error:
            # It will be there again, and nothing is lost meanwhile.
            output.note(f"{error.message}; trying again in {every_s:g} s")
        stop.wait(every_s)


def _line(done: "Compacted") -> str:
    where = ", ".join(map(str, done.partitions))
    words = (
        f"{done.stage} v{done.version}",
        f"{humane.plural(done.inputs, 'SST')} to {done.outputs}",
        f"partition{'s' if len(done.partitions) > 1 else ''} {where}",
        f"{humane.size(done.bytes_read)} read, {humane.size(done.bytes_written)} written",
        f"{humane.plural(done.left_out, 'merge')} left out: somebody else was faster" if done.left_out else "",
    )
    return "  ".join(filter(None, words))


def _parts(app_name: str, done: "list[Compacted]", earlier: "tuple[Manifest, ...]") -> Iterator[Part]:
    if earlier:
        now_ms = humane.now_ms()
        merged = (f"{each.stage} by v{each.version}, {humane.age(each.time_ms, now_ms)}" for each in earlier)
        yield f"done already: nothing to merge in {app_name}; merged {'; '.join(merged)}"
        return
    if not done:
        yield f"nothing to merge in {app_name}"
        return
    yield Title(f"compacted {app_name}")
    yield Grid.of(
        ("stage", ">version", ">merges", ">SSTs before", ">after", ">read", ">written"),
        (
            (
                each.stage,
                f"v{each.version}",
                humane.count(each.merges),
                humane.count(each.inputs),
                humane.count(each.outputs),
                humane.size(each.bytes_read),
                humane.size(each.bytes_written),
            )
            for each in done
        ),
    )


def _planned(app_name: str, due: "tuple[Merge, ...]") -> Iterator[Part]:
    if not due:
        yield f"nothing to merge in {app_name}"
        return
    yield Title(f"would merge in {app_name}")
    yield Grid.of(
        ("stage", ">partition", ">SSTs", ">size", "of levels", "into level", ""),
        (
            (
                each.stage,
                str(each.partition),
                humane.count(each.inputs),
                humane.size(each.bytes),
                ", ".join(map(str, each.levels)),
                str(each.level),
                "moved, not rewritten" if each.moves else "",
            )
            for each in due
        ),
    )
