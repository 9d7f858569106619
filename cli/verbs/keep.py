"""Verbs that change what is stored: clone, rescale, retire, compact, gc, app."""

import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from ... import instants
from ...durations import HOUR_MS, format_ms
from ...errors import NotFound, Refused, Unavailable, Usage
from ...results.document import Result
from .. import options
from ..session import Session, group, store_flag, verb

if TYPE_CHECKING:
    from ...keep.maintain.compact import AppCompactor
    from ...keep.maintain.removal import Removal
    from ...pipeline.kafka.protocol import Kafka
    from ...settings import Settings


@verb(
    "slackwater clone flights flights-staging",
    "slackwater clone flights@before-deploy flights-staging --topic flights=flights-corrected",
    "slackwater clone flights/carriers@v16 flights-staging --to s3://staging/slackwater --dry-run",
    kafka=True,
)
def clone(
    session: Session,
    source: str = options.argument("SRC[@REF]", "The app to clone, and the moment. Default: now."),
    name: str = options.argument("DST", "Name of the clone."),
    topic: list[str] | None = options.option(
        "NAME=OTHER", "Let the clone read topic OTHER where the app says NAME; may be repeated."
    ),
    sink: list[str] | None = options.option(
        "NAME=TOPIC", "Let the clone publish its sink NAME to this topic; may be repeated. Default: nothing."
    ),
    to: str | None = options.option("ROOT", "Store root of the clone. Default: the source's."),
    dry_run: options.DryRun = False,
) -> None:
    """Make a new app from a moment of another one.

    The clone has the source's state, its offsets, and the records that were on the way between its stages. No
    state is copied, however large: the clone points at the source's SSTs, and a snapshot of the source
    keeps them. The clone has repartition topics of its own and never writes to the source's. It publishes
    nothing unless --sink says where to. An interrupted clone is finished by the same command. --store is where the
    source is, --to where the clone goes.
    """
    from ...keep.clone.clone import clone as make
    from ...keep.clone.first_versions import has_run
    from ...pipeline.kafka.channels import KafkaChannels
    from ...results.snapshots import cloned

    topics, target = _pairs("--topic", topic or ()), session.store.at(to or "")
    try:
        plan = make(
            session.store,
            source,
            name,
            topics=topics,
            sinks=_pairs("--sink", sink or ()),
            channels=KafkaChannels(session.settings.open_kafka()),
            target_store=target,
            by=session.client.by,
            dry_run=dry_run,
        )
    except NotFound as error:
        if error.what == "app" and session.said_store and not to:
            error.hint += "; --store is where the source is, --to says where the clone goes"
        raise
    session.note_thinned(source, plan.source.thinned)
    runs = plan.done and has_run(target, plan.info)
    session.show(cloned(plan, source, store_flag(to or session.said_store), runs=runs, dry_run=dry_run))


def _pairs(option: str, pairs: Sequence[str]) -> dict[str, str]:
    topics: dict[str, str] = {}
    for pair in pairs:
        declared, equals, other = pair.partition("=")
        if not (declared and equals and other):
            example = "flights=flights-corrected" if option == "--topic" else "alerts=staging-alerts"
            raise Usage(f"{option} {pair!r} is not NAME=OTHER", hint=f"for example {option} {example}")
        if topics.setdefault(declared, other) != other:
            raise Usage(f"{option} names {declared!r} twice: as {topics[declared]!r} and as {other!r}")
    return topics


@verb(
    "slackwater rescale flights/carriers --partitions 8", "slackwater rescale flights/aircraft --partitions 2 --dry-run"
)
def rescale(
    session: Session,
    stage: options.Stage,
    partitions: int = options.option("N", "State partitions from now on.", ..., min=1),
    dry_run: options.DryRun = False,
) -> None:
    """Change the number of state partitions of a stage's table.

    As many tasks then work on the state at once. One commit, however large the table: no state is copied, and
    compaction brings it to the new partitions as it merges. A runner of the stage stops; started again, it goes on with
    the new number, whatever partitions= says in the code.
    """
    from ...keep.maintain.rescale import rescale as change
    from ...results.kept import rescaled

    names, now_ms = options.names_of_stage(stage), instants.now_ms()
    done = change(session.store, *names, partitions, by=session.client.by, now_ms=now_ms, dry_run=dry_run)
    session.show(rescaled(done, stage, dry_run=dry_run))


@verb("slackwater retire flights/carriers --dry-run", "slackwater retire flights/carriers", kafka=True)
def retire(session: Session, stage: options.Stage, dry_run: options.DryRun = False) -> None:
    """Let an app go on without a stage that is gone from its program.

    From then on snapshots do not wait for it, moments of the app leave it out, and garbage collection keeps nothing
    for it to read. Its history and its table stay. A runner that has the stage stops; a program that has it brings it
    back, and it goes on where it stopped.
    """
    from ...keep.maintain.retire import retire as change
    from ...results.kept import retired

    names = options.names_of_stage(stage)
    done = change(session.store, *names, by=session.client.by, now_ms=instants.now_ms(), dry_run=dry_run)
    session.show(retired(done, session.flags, dry_run=dry_run))
    if not dry_run and (trouble := _forget_group(session.settings, *names)):
        session.note(trouble)


def _forget_group(settings: "Settings", app_name: str, stage: str) -> str:
    """Remove the stage's consumer group, whose lag would only grow; returns why it is still there, if it is."""
    if not settings.brokers:
        return ""
    from ...pipeline.kafka.channels import group_of

    try:
        settings.open_kafka().delete_groups([group_of(app_name, stage)])
    except Unavailable as error:
        return f"the consumer group {group_of(app_name, stage)} is still there: {error.message}"
    return ""


_NICE = 10


@verb(
    "slackwater compact flights --dry-run",
    "slackwater compact flights --stage carriers --full",
    "slackwater compact flights --watch --threads 2     # beside: slackwater run flights.py --compaction external",
)
def compact(
    session: Session,
    app_name: options.App,
    stage: list[str] | None = options.option(
        "NAME", "Only the table of this stage; may be repeated. Default: all tables."
    ),
    watch: bool = options.flag("--watch", "Go on for ever, merging what becomes due, until Ctrl-C or SIGTERM."),
    every: int = options.span("How often --watch looks. Default: 5s.", 5000, least_ms=100, bare_seconds=True),
    threads: int = options.option("N", "Merges that go on at once.", 1, min=1),
    full: bool = options.flag("--full", "Merge everything of each state partition into one run, due or not."),
    dry_run: options.DryRun = False,
) -> None:
    """Merge the SSTs of an app's tables, as the policy of each table calls for.

    What is merged is committed as versions of their own, which change no row. The app may run meanwhile; when a batch
    is committed first, the result is put into the version after it. This process gives way to others on the machine.
    """
    from ...keep.maintain.compact import AppCompactor, plan
    from ...pipeline.run.stopping import stop_signals
    from ...results.kept import to_compact

    if watch and (full or dry_run):
        raise Usage(f"--watch and {'--full' if full else '--dry-run'} exclude each other")
    opened, wanted = session.store, tuple(stage or ())
    if dry_run:
        session.show(to_compact(app_name, plan(opened, app_name, wanted, full=full)))
        return
    # Not everywhere can a process give way.
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    # Only what watches ends in order; else these end the process as always.
    with stop_signals() if watch else nullcontext(threading.Event()) as stop:
        cache, by = session.cache, session.client.by
        compactor = AppCompactor(
            opened, cache, app_name, wanted, by=by, threads=threads, now_ms=instants.now_ms, stop=stop
        )
        if watch:
            _watch(session, compactor, every / 1_000)
        else:
            _once(session, compactor, full)


def _watch(session: Session, compactor: "AppCompactor", every_s: float) -> None:
    from ...results.kept import compacted_line

    again = f"trying again in {every_s:g} s"

    def put_off(stage: str, error: Exception) -> None:
        session.note(f"compaction of {compactor.app}/{stage} put off; {again}")
        session.output.failure(error)

    compactor.watch(
        every_s,
        on_version=lambda done: session.show(Result(done, compacted_line(done))),
        failed=put_off,
        away=lambda error: session.note(f"{error.message}; {again}"),
    )


def _once(session: Session, compactor: "AppCompactor", full: bool) -> None:
    from ...keep.maintain.compact import merged_last
    from ...results.kept import compacted, compacted_line

    app_name = compactor.app
    with session.output.progress() as progress:
        done = compactor.once(full=full, on_version=lambda each: progress(compacted_line(each)))
    earlier = () if done else merged_last(compactor.store, app_name, compactor.wanted)
    session.show(compacted(app_name, done, earlier))


@verb(
    "slackwater gc flights --dry-run",
    "slackwater gc flights --all 1d --hourly 7d",
    "slackwater gc flights --explain flights/stages/carriers/sst/01K9TZ3Y5C8V0WQ2X4N6M8R0TB.parquet",
)
def gc(
    session: Session,
    app_name: options.App,
    all_: int | None = options.span("Keep every version this young.", name="--all"),
    hourly: int | None = options.span("Within this age, keep a moment an hour."),
    daily: int | None = options.span("Within this age, keep a moment a day."),
    versions: int | None = options.option("N", "Keep the newest N versions of each stage.", min=1),
    margin: int = options.span("Keep objects that nothing names for so long. Default, and the shortest: 1h.", HOUR_MS),
    explain: str | None = options.option("OBJECT", "Say why this object is kept, or not; delete nothing."),
    dry_run: options.DryRun = False,
) -> None:
    """Collect garbage: versions that retention lets go, and objects that nothing names.

    The rules are in slackwater.toml, under [retention]; an option here takes the place of the rule of its name.
    Each rule keeps something, what no rule keeps goes, and without any rule the whole history stays. Snapshots,
    clones, and what a stage has not read yet always stay. The app may run meanwhile.
    """
    from ...keep.gc.collect import MARGIN_MS, collect
    from ...keep.gc.explain import explain as why
    from ...results import kept

    rules = session.settings.retention_of(app_name, all_ms=all_, hourly_ms=hourly, daily_ms=daily, versions=versions)
    if margin < MARGIN_MS:
        raise Usage(
            f"--margin is {format_ms(margin)}; expected 1h or more: what a merge writes may be half an hour old before "
            "a version names it",
            hint="leave --margin away; what nothing names goes after an hour",
        )
    if explain is not None:
        found = why(session.store, app_name, explain, rules, margin_ms=margin)
        session.show(kept.explained(found))
        return
    done = collect(session.store, app_name, rules, by=session.client.by, dry_run=dry_run, margin_ms=margin)
    session.show(kept.collected(done))


app = group()


@app.callback(epilog=options.examples("slackwater app rm flights-staging --dry-run"))
def _app() -> None:
    """Remove an app wholly."""


@verb(
    "slackwater app rm flights-staging --dry-run",
    "slackwater app rm flights-staging --topics          # with its topics and consumer groups in Kafka",
    of=app,
    kafka=True,
)
def rm(
    session: Session,
    app_name: options.App,
    topics: bool = options.flag("--topics", "Also its repartition topics and consumer groups in Kafka."),
    fence: bool = options.flag("--fence", "Also when a runner holds it: that stops."),
    force: bool = options.flag("--force", "Also when clones live from it: these are damaged then."),
    dry_run: options.DryRun = False,
) -> None:
    """Remove an app: its tables, its history, its snapshots.

    Nothing of it can be brought back. It is refused while a clone lives from it. Whatever interrupts it, the same
    command finishes it; the name is free after that. Topics of yours are never touched.
    """
    from ...keep.maintain.removal import remove_app
    from ...results.kept import removed

    if topics:
        session.settings.open_kafka()  # says what is missing before anything is done
    done = remove_app(
        session.store,
        app_name,
        by=session.client.by,
        now_ms=instants.now_ms(),
        fence=fence,
        force=force,
        dry_run=dry_run,
        outside=lambda removal: _remove_from_kafka(session.settings.open_kafka(), removal) if topics else None,
        on_wait=session.note,
    )
    session.show(removed(done, _groups(done.removal), topics=topics, dry_run=dry_run))


def _remove_from_kafka(kafka: "Kafka", removal: "Removal") -> None:
    """Raises `Unavailable`, and `Refused` where Kafka does not allow it."""
    refused = kafka.delete_topics(removal.topics)
    if refused:
        raise Refused(
            f"Kafka does not let these topics of {removal.app} be removed: {', '.join(refused)}",
            hint="remove them yourself, then say it again without --topics",
        )
    kafka.delete_groups(_groups(removal))


def _groups(removal: "Removal") -> tuple[str, ...]:
    from ...pipeline.kafka.channels import group_of

    return tuple(group_of(removal.app, stage) for stage in removal.stages)
