"""`slackwater snapshot`: take, list, show and remove named moments of an app."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ... import instants
from ...errors import Usage
from ...results import formats
from ...results.document import Block, Table
from .. import options
from ..session import Session, group, verb
from ..waiting import progress_of_answers, waiting_for

if TYPE_CHECKING:
    from ...snapshot.cut.graph import Cut
    from ...snapshot.cut.in_flight import InFlight
    from ...snapshot.cut.requests import Request
    from ...snapshot.cut.stored import Snapshot

snapshot = group()

App = Annotated[str, typer.Argument(metavar="APP", help="Name of the app; or APP@NAME.", show_default=False)]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the snapshot.", show_default=False)]


def _which(app: str, name: str | None) -> tuple[str, str]:
    """The app and the snapshot, said as two words or as a ref. Raises `Usage` where it is neither."""
    app_name, _, named = app.partition("@")
    if bool(named) == bool(name):
        raise Usage(
            f"{' '.join(filter(None, (app, name)))!r} does not say which snapshot; expected {app_name} NAME, or "
            f"{app_name}@NAME",
            hint=f"slackwater snapshot list {app_name} shows them",
        )
    return app_name, named or str(name)


@snapshot.callback(
    epilog=options.examples("slackwater snapshot take flights before-deploy", "slackwater snapshot list flights")
)
def _snapshot() -> None:
    """Take, list, show and remove snapshots of an app."""


@verb(
    "slackwater snapshot take flights before-deploy",
    "slackwater snapshot take flights --instant      # also of an app that does not run",
    of=snapshot,
    kafka=True,
)
def take(
    session: Session,
    app_name: options.App,
    name: str | None = options.argument("NAME", "Default: the time, as 20261121-071205.", None),
    instant: bool = options.flag("--instant", "Pin the newest consistent moment without asking the app."),
    timeout: int = options.span("Withdraw the request after this long. Default: 60s.", 60000, bare_seconds=True),
    wait: bool = options.option(None, "Wait until it is complete.", True, name="--wait/--no-wait"),
) -> None:
    """Take a snapshot of a running app, without stopping or slowing it.

    Every stage answers between two of its batches; markers in the topics between them make the answers one
    consistent moment. No state is copied; records on the way between stages are kept with it.
    """
    from ...snapshot.cut.requests import own_request
    from ...snapshot.status import roster
    from ...snapshot.take import taking
    from ...snapshot.take.audit_log import whoami
    from ...snapshot.take.waiting import take as take_and_wait

    opened, reader, by = session.store, session.settings.open_channels(), whoami()
    name, now_ms = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}", instants.now_ms()

    def is_new() -> bool:
        # A call that was interrupted is typed again: it finds what that one took, or its request.
        return taking.taken_already(opened, app_name, name, "markers", by=by, now_ms=now_ms) is None

    if not wait and not instant and is_new():
        own = own_request(opened, app_name, name, by)
        asked = own or taking.request(opened, app_name, name, by)
        when = f" already, {instants.age(asked.created_ms)}" if own else ""
        session.show(asked, f"asked for {app_name}@{name}{when}; `slackwater snapshot list {app_name}` shows it")
        return
    if not instant and not roster.beats(opened, app_name, now_ms) and is_new():
        session.note(f"nobody runs {app_name} now: its next runner takes the snapshot; --instant needs none")
    with session.output.progress() as progress:
        taken = take_and_wait(
            opened,
            app_name,
            name,
            by=by,
            reader=reader,
            instant=instant,
            timeout_s=timeout / 1_000,
            on_look=progress_of_answers(progress, app_name, name),
        )
    if instant and reader is None and not taken.already:
        session.note("records on the way between stages are not kept with it: nothing says where Kafka is (--kafka)")
    session.show(taken.snapshot, *_taken(taken.snapshot, session.flags, taken.already))


@verb("slackwater snapshot list flights", of=snapshot, name="list")
def list_(session: Session, app_name: options.App) -> None:
    """List the snapshots of an app, and those it was asked for."""
    from ...snapshot.cut.requests import open_requests
    from ...snapshot.cut.stored import list_snapshots

    taken, asked = list_snapshots(session.store, app_name), open_requests(session.store, app_name)
    session.show({"snapshots": taken, "requests": asked}, *_listed(app_name, taken, asked))
    for sentence in waiting_for(session.store, app_name, asked):
        session.note(sentence)


@verb("slackwater snapshot show flights before-deploy", of=snapshot)
def show(session: Session, app_name: App, name: Name = None) -> None:
    """Show the versions of a snapshot, and where its inputs stood.

    Also what was on the way between stages at that moment: records that one had sent and the next not read.
    """
    from ...snapshot.cut.in_flight import in_flight
    from ...snapshot.cut.stored import of_snapshot, read_snapshot

    opened = session.store
    snapshot = read_snapshot(opened, *_which(app_name, name))
    cut = of_snapshot(opened, snapshot)
    flights = in_flight(opened, cut)
    inputs = {stage: manifest.inputs for stage, manifest in cut.stages.items()}
    data = {"snapshot": snapshot, "inputs": inputs, "in_flight": flights}
    session.show(data, *_shown(snapshot, cut, flights))


@verb("slackwater snapshot rm flights before-deploy --dry-run", of=snapshot)
def rm(
    session: Session,
    app_name: App,
    name: Name = None,
    dry_run: options.DryRun = False,
    force: bool = options.flag("--force", "Also when a clone lives from it."),
) -> None:
    """Remove a snapshot, or withdraw the request for one.

    The versions stay in the history; only the promise to keep them is gone.
    """
    from ...snapshot.cut.stored import Snapshot
    from ...snapshot.take.audit_log import Operation, whoami
    from ...snapshot.take.remove import remove_or_withdraw

    app_name, name = _which(app_name, name)
    gone = remove_or_withdraw(session.store, app_name, name, by=whoami(), force=force, dry_run=dry_run)
    what, done = f"{app_name}@{name}", "would remove" if dry_run else "removed"
    match gone:
        case Operation():
            line = f"done already: {what} was removed {instants.when(gone.time_ms)} by {gone.by}"
        case Snapshot():
            line = f"{done} {what} ({_versions(gone)})"
        case _:
            line = f"{done} the request for {what}"
    earlier = isinstance(gone, Operation)
    session.show({"removed": None if earlier else gone, "dry_run": dry_run, "done_already": earlier}, line)


def _taken(snapshot: "Snapshot", flags: str, is_earlier: bool) -> Iterator[Block]:
    took = formats.duration(snapshot.completed_ms - snapshot.created_ms)
    done = "is pinned" if snapshot.kind == "instant" else f"is complete after {took}"
    if is_earlier:
        done = f"is the one that you took {instants.age(snapshot.completed_ms)}"
    begin = "done already: " if is_earlier else ""
    yield f"{begin}snapshot {snapshot.app}@{snapshot.name} {done}: {_versions(snapshot)}"
    if rows := sum(kept.rows for kept in snapshot.channels):
        yield f"{formats.plural(rows, 'record')} on the way between stages kept with it"
    yield f'query it: slackwater query {snapshot.app}@{snapshot.name} "SELECT …"{flags}'


def _listed(app_name: str, taken: "tuple[Snapshot, ...]", asked: "tuple[Request, ...]") -> Iterator[Block]:
    rows: list[tuple[str, ...]] = [(s.name, instants.when(s.completed_ms), s.kind, _versions(s), s.by) for s in taken]
    rows += [(r.name, instants.when(r.created_ms), "asked for", "…", r.by) for r in asked]
    if rows:
        yield Table.of(("name", "taken", "kind", "versions", "by"), rows)
    else:
        yield f"{app_name} has no snapshot; `slackwater snapshot take {app_name} NAME` takes one"


def _shown(snapshot: "Snapshot", cut: "Cut", flights: "tuple[InFlight, ...]") -> Iterator[Block]:
    by = f" by {snapshot.by}" if snapshot.by else ""
    yield f"{snapshot.app}@{snapshot.name}  {snapshot.kind}, {instants.when(snapshot.completed_ms)}{by}"
    if snapshot.clone:
        yield f"kept for the clone {snapshot.clone}"
    manifests = [cut.stages[stage] for stage in cut.versions]
    yield Table.each(
        manifests,
        {
            "stage": lambda m: m.stage,
            ">version": lambda m: f"v{m.version}",
            "committed": lambda m: instants.iso(m.time_ms),
            "table": lambda m: m.stage if m.table else "-",
            "read up to": lambda m: formats.windows(
                f"{i.topic}[{p}] {o}" for i in m.inputs.values() for p, o in enumerate(i.offsets)
            ),
        },
    )
    if not flights:
        yield "nothing was on the way between stages"
        return
    yield ""
    yield Table.of(
        ("on the way", "from", "to", ">rows", "offsets"),
        (
            (f.channel, f.sender, f.receiver or "-", formats.count(f.rows), formats.between(f.topic, f.starts, f.ends))
            for f in flights
        ),
    )


def _versions(snapshot: "Snapshot") -> str:
    return ", ".join(f"{stage}@v{version}" for stage, version in snapshot.stages.items())
