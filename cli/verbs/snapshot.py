"""`slackwater snapshot`: take, list, show and remove named moments of an app."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...settings import load
from .. import humane, options
from ..output import Part, output_for
from ..tables import Grid
from ..waiting import teller, waiting_for

if TYPE_CHECKING:
    from ...snapshot.cut.graph import Cut
    from ...snapshot.cut.in_flight import InFlight
    from ...snapshot.cut.requests import Request
    from ...snapshot.cut.stored import Snapshot

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.", show_default=False)]


@app.callback(
    epilog=options.examples("slackwater snapshot take flights before-deploy", "slackwater snapshot list flights")
)
def _snapshot() -> None:
    """Take, list, show and remove snapshots of an app."""


@app.command(
    epilog=options.examples(
        "slackwater snapshot take flights before-deploy",
        "slackwater snapshot take flights --instant      # also of an app that does not run",
    )
)
def take(
    app_name: options.App,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Default: the time, as 20261121-071205.", show_default=False),
    ] = None,
    instant: Annotated[
        bool, typer.Option("--instant", help="Pin the newest consistent moment without asking the app.")
    ] = False,
    timeout: Annotated[
        int, options.span("Withdraw the request after this long. Default: 60s.", bare_seconds=True)
    ] = 60_000,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is complete.")] = True,
    store: options.Store = None,
    kafka: options.Kafka = None,
    as_json: options.Json = False,
) -> None:
    """Take a snapshot of a running app, without stopping or slowing it.

    Every stage answers between two of its batches; markers in the topics between them make the answers one
    consistent moment. No state is copied; records on the way between stages are kept with it.
    """
    from ...snapshot.cut.requests import own_request
    from ...snapshot.take import taking
    from ...snapshot.take.audit_log import whoami
    from ...snapshot.take.waiting import take as take_and_wait

    settings, output, by = load(store=store, kafka=kafka), output_for(json=as_json), whoami()
    opened, reader = settings.open_store(), settings.open_channels()
    name, now_ms = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}", humane.now_ms()
    # A call that was interrupted is typed again: it finds what that one took, or its request.
    if not (wait or instant or taking.taken_already(opened, app_name, name, "markers", by=by, now_ms=now_ms)):
        own = own_request(opened, app_name, name, by)
        asked = own or taking.request(opened, app_name, name, by)
        when = f" already, {humane.age(asked.created_ms, now_ms)}" if own else ""
        output.show(asked, f"asked for {app_name}@{name}{when}; `slackwater snapshot list {app_name}` shows it")
        return
    with output.progress() as tell:
        taken = take_and_wait(
            opened,
            app_name,
            name,
            by=by,
            reader=reader,
            instant=instant,
            timeout_s=timeout / 1_000,
            on_look=teller(tell, app_name, name),
        )
    if instant and reader is None and not taken.already:
        output.note("records on the way between stages are not kept with it: nothing says where Kafka is (--kafka)")
    output.show(taken.snapshot, *_taken(taken.snapshot, options.said(store), taken.already))


@app.command("list", epilog=options.examples("slackwater snapshot list flights"))
def list_(app_name: options.App, store: options.Store = None, as_json: options.Json = False) -> None:
    """List the snapshots of an app, and those it was asked for."""
    from ...snapshot.cut.requests import open_requests
    from ...snapshot.cut.stored import list_snapshots

    opened = load(store=store).open_store()
    taken, asked = list_snapshots(opened, app_name), open_requests(opened, app_name)
    output = output_for(json=as_json)
    output.show({"snapshots": taken, "requests": asked}, *_listed(app_name, taken, asked))
    for sentence in waiting_for(opened, app_name, asked):
        output.note(sentence)


@app.command(epilog=options.examples("slackwater snapshot show flights before-deploy"))
def show(app_name: options.App, name: Name, store: options.Store = None, as_json: options.Json = False) -> None:
    """Show the versions of a snapshot, and where its inputs stood.

    Also what was on the way between stages at that moment: records that one had sent and the next not read.
    """
    from ...snapshot.cut.in_flight import in_flight
    from ...snapshot.cut.stored import of_snapshot, read_snapshot

    opened = load(store=store).open_store()
    snapshot = read_snapshot(opened, app_name, name)
    cut = of_snapshot(opened, snapshot)
    flights = in_flight(opened, cut)
    inputs = {stage: manifest.inputs for stage, manifest in cut.stages.items()}
    data = {"snapshot": snapshot, "inputs": inputs, "in_flight": flights}
    output_for(json=as_json).show(data, *_shown(snapshot, cut, flights))


@app.command(epilog=options.examples("slackwater snapshot rm flights before-deploy --dry-run"))
def rm(
    app_name: options.App,
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also when a clone lives from it.")] = False,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Remove a snapshot, or withdraw the request for one.

    The versions stay in the history; only the promise to keep them is gone.
    """
    from ...snapshot.cut import requests
    from ...snapshot.cut.stored import find_snapshot
    from ...snapshot.take import snapshots
    from ...snapshot.take.audit_log import find_operation, record_once, whoami

    opened, output = load(store=store).open_store(), output_for(json=as_json)
    asked = [each for each in requests.open_requests(opened, app_name) if each.name == name]
    found = find_snapshot(opened, app_name, name)
    if found is None and not asked:
        earlier = find_operation(opened, app_name, "snapshot rm", name.__eq__)
        if earlier is not None:
            if not dry_run:
                snapshots.remove_records(opened, app_name, name)
            when = f"{humane.when(earlier.time_ms, humane.now_ms())} by {earlier.by}"
            data = {"removed": None, "dry_run": dry_run, "done_already": True}
            output.show(data, f"done already: {app_name}@{name} was removed {when}")
            return
    if found is not None or not asked:
        found = snapshots.check_removable(opened, app_name, name, force=force)
    gone: Any = found if found is not None else asked[0]
    if not dry_run:
        # First, so that whoever repeats this after it was interrupted is told from whoever misspells a name.
        record_once(opened, app_name, "snapshot rm", name, whoami(), since_ms=gone.created_ms)
        for each in asked:
            requests.cancel(opened, app_name, each)
        if found is not None:
            snapshots.remove(opened, app_name, name, force=force)
    what = f"{'the request for ' if found is None else ''}{app_name}@{name}"
    done = "would remove" if dry_run else "removed"
    data = {"removed": gone, "dry_run": dry_run, "done_already": False}
    output.show(data, f"{done} {what}{'' if found is None else f' ({_versions(found)})'}")


def _taken(snapshot: "Snapshot", flags: str, is_earlier: bool) -> Iterator[Part]:
    took = humane.duration(snapshot.completed_ms - snapshot.created_ms)
    done = "is pinned" if snapshot.kind == "instant" else f"is complete after {took}"
    if is_earlier:
        done = f"is the one that you took {humane.age(snapshot.completed_ms, humane.now_ms())}"
    begin = "done already: " if is_earlier else ""
    yield f"{begin}snapshot {snapshot.app}@{snapshot.name} {done}: {_versions(snapshot)}"
    if rows := sum(kept.rows for kept in snapshot.channels):
        yield f"{humane.plural(rows, 'record')} on the way between stages kept with it"
    yield f'query it: slackwater query {snapshot.app}@{snapshot.name} "SELECT …"{flags}'


def _listed(app_name: str, taken: "tuple[Snapshot, ...]", asked: "tuple[Request, ...]") -> Iterator[Part]:
    now_ms = humane.now_ms()
    rows: list[tuple[str, ...]] = [
        (s.name, humane.when(s.completed_ms, now_ms), s.kind, _versions(s), s.by) for s in taken
    ]
    rows += [(r.name, humane.when(r.created_ms, now_ms), "asked for", "…", r.by) for r in asked]
    if rows:
        yield Grid.of(("name", "taken", "kind", "versions", "by"), rows)
    else:
        yield f"{app_name} has no snapshot; `slackwater snapshot take {app_name} NAME` takes one"


def _shown(snapshot: "Snapshot", cut: "Cut", flights: "tuple[InFlight, ...]") -> Iterator[Part]:
    now_ms = humane.now_ms()
    by = f" by {snapshot.by}" if snapshot.by else ""
    yield f"{snapshot.app}@{snapshot.name}  {snapshot.kind}, {humane.when(snapshot.completed_ms, now_ms)}{by}"
    if snapshot.clone:
        yield f"kept for the clone {snapshot.clone}"
    manifests = [cut.stages[stage] for stage in cut.versions]
    yield Grid.of(
        ("stage", ">version", "committed", "table", "read up to"),
        (
            (
                m.stage,
                f"v{m.version}",
                humane.moment(m.time_ms),
                m.stage if m.table else "-",
                humane.windows(f"{i.topic}[{p}] {o}" for i in m.inputs.values() for p, o in enumerate(i.offsets)),
            )
            for m in manifests
        ),
    )
    if not flights:
        yield "nothing was on the way between stages"
        return
    yield ""
    yield Grid.of(
        ("on the way", "from", "to", ">rows", "offsets"),
        ((f.channel, f.sender, f.receiver or "-", humane.count(f.rows), _windows(f)) for f in flights),
    )


def _windows(flight: "InFlight") -> str:
    partitions = enumerate(zip(flight.starts, flight.ends, strict=True))
    return humane.windows(f"{flight.topic}[{p}] {start}..{end}" for p, (start, end) in partitions if end > start)


def _versions(snapshot: "Snapshot") -> str:
    return ", ".join(f"{stage}@v{version}" for stage, version in snapshot.stages.items())
