"""`slackwater snapshot`: take, list, show and remove named moments of an app."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ... import instants
from ...errors import Usage
from ...results.document import Result, Table
from .. import options
from ..output import Progress
from ..session import Session, group, verb

if TYPE_CHECKING:
    from ...moments.cut.stored import Request
    from ...moments.take.taking import Answer
    from ...moments.take.waiting import Look
    from ...store.objects.protocol import ObjectStore

_ANSWERED_MS = 10_000
"""By then a stage that runs has answered, as a rule."""

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
    from ...moments.cut.stored import own_request
    from ...moments.status import lag
    from ...moments.take import taking
    from ...moments.take.waiting import take as take_and_wait
    from ...results import snapshots as shown

    opened, reader, by = session.store, session.client.channels(), session.client.by
    name, now_ms = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}", instants.now_ms()

    def is_new() -> bool:
        # A call that was interrupted is typed again: it finds what that one took, or its request.
        return taking.taken_already(opened, app_name, name, "markers", by=by, now_ms=now_ms) is None

    if not wait and not instant and is_new():
        own = own_request(opened, app_name, name, by)
        asked = own or taking.request(opened, app_name, name, by)
        when = f" already, {instants.age(asked.created_ms)}" if own else ""
        line = f"asked for {app_name}@{name}{when}; `slackwater snapshot list {app_name}` shows it"
        session.show(Result(asked, line))
        return
    if not instant and not lag.beats(opened, app_name, now_ms) and is_new():
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
            on_look=_progress_of_answers(progress, app_name, name),
        )
    if instant and reader is None and not taken.already:
        session.note("records on the way between stages are not kept with it: nothing says where Kafka is (--kafka)")
    session.show(shown.taken(taken, session.flags))


@verb("slackwater snapshot list flights", of=snapshot, name="list")
def list_(session: Session, app_name: options.App) -> None:
    """List the snapshots of an app, and those it was asked for."""
    from ...moments.cut.stored import list_snapshots, open_requests
    from ...results import snapshots as shown

    taken, asked = list_snapshots(session.store, app_name), open_requests(session.store, app_name)
    session.show(shown.snapshots(app_name, taken, asked, waiting_for(session.store, app_name, asked)))


@verb("slackwater snapshot show flights before-deploy", of=snapshot)
def show(session: Session, app_name: App, name: Name = None) -> None:
    """Show the versions of a snapshot, and where its inputs stood.

    Also what was on the way between stages at that moment: records that one had sent and the next not read.
    """
    from ...moments.cut.in_flight import in_flight
    from ...moments.cut.stored import of_snapshot, read_snapshot
    from ...results import snapshots as shown

    opened = session.store
    snapshot = read_snapshot(opened, *_which(app_name, name))
    cut = of_snapshot(opened, snapshot)
    session.show(shown.snapshot(snapshot, cut, in_flight(opened, cut)))


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
    from ...moments.take.remove import remove_or_withdraw
    from ...results import snapshots as shown

    app_name, name = _which(app_name, name)
    gone = remove_or_withdraw(session.store, app_name, name, by=session.client.by, force=force, dry_run=dry_run)
    session.show(shown.unpinned(f"{app_name}@{name}", gone, dry_run=dry_run))


def _progress_of_answers(progress: Progress, app_name: str, name: str) -> "Callable[[Look], None]":
    """Shows the stages' answers as they come in: a line for each that is new, and a table of all."""
    before: dict[str, tuple[str, str]] = {}

    def on_look(look: "Look") -> None:
        nonlocal before
        title = f"snapshot {name} of {app_name}" + ("" if look.complete else f": {look.waited_s:.1f} s")
        states = {stage: _state(answer) for stage, answer in look.answers.items()}
        rows = [(stage, *state, instants.when(look.answers[stage].head_ms)) for stage, state in states.items()]
        news = [
            f"{stage} recorded v{answer.version}"
            + (f", awaits the marker on {', '.join(answer.awaited)}" if answer.awaited else "")
            for stage, answer in look.answers.items()
            if answer.version is not None and before.get(stage) != states[stage]
        ]
        for line in news or [""]:
            progress(line, title, Table.of(("stage", "marker", "recorded", "last commit"), rows))
        before = states

    return on_look


def waiting_for(store: "ObjectStore", app_name: str, asked: "Sequence[Request]") -> Iterator[str]:
    """A sentence for each snapshot under way that waits for stages which do nothing."""
    from ...moments.take.taking import answers
    from ...moments.take.waiting import ask_whether_gone, silent_stages

    for request in asked:
        if instants.now_ms() - request.created_ms < _ANSWERED_MS:
            continue
        found = answers(store, app_name, request)
        if silent := silent_stages(found):
            shown = ", ".join(f"{stage} (last commit {instants.when(found[stage].head_ms)})" for stage in silent)
            yield (
                f"snapshot {request.name} waits for {shown}, which {'does' if len(silent) == 1 else 'do'} not answer: "
                f"{ask_whether_gone(app_name, silent)}"
            )


def _state(answer: "Answer") -> tuple[str, str]:
    """What became of the marker at a stage, and the version that the stage recorded."""
    if answer.version is None:
        return "not seen", "…"
    return ("awaits " + ", ".join(answer.awaited) if answer.awaited else "passed on"), f"v{answer.version}"
