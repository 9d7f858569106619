"""`slackwater clone`: an app of its own, from another app's moment."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ... import instants
from ...errors import NotFound, Usage
from ...results import formats
from ...results.document import Block, Table, Title
from .. import options
from ..session import Session, store_flag, verb

if TYPE_CHECKING:
    from ...snapshot.clone.plan import ClonePlan


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
    from ...pipeline.kafka.channels import KafkaChannels
    from ...snapshot.clone.clone import clone as make
    from ...snapshot.clone.first_versions import has_run
    from ...snapshot.take.audit_log import whoami

    topics, target = _pairs("--topic", topic or ()), session.store.at(to or "")
    try:
        plan = make(
            session.store,
            source,
            name,
            topics=topics,
            sinks=_pairs("--sink", sink or ()),
            channels=KafkaChannels(session.settings.kafka()),
            target_store=target,
            by=whoami(),
            dry_run=dry_run,
        )
    except NotFound as error:
        if error.what == "app" and session.said_store and not to:
            error.hint += "; --store is where the source is, --to says where the clone goes"
        raise
    session.note_thinned(source, plan.source.thinned)
    parts = (
        _done_already(plan, runs=has_run(target, plan.info))
        if plan.done
        else _parts(plan, source, store_flag(to or session.said_store), dry_run)
    )
    session.show(_data(plan, dry_run), *parts)


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


def _data(plan: "ClonePlan", dry_run: bool) -> dict[str, Any]:
    return {
        "app": plan.info,
        "store": plan.target_root,
        "source": {
            "app": plan.source.app,
            "versions": plan.source.versions,
            "time_ms": plan.source.time_ms,
            "thinned_out": plan.source.thinned,
        },
        "topics": plan.topics,
        "sinks": plan.info.origin.sinks if plan.info.origin else {},
        "in_flight": plan.in_flight,
        "resumed": plan.resumed,
        "done_already": plan.done,
        "dry_run": dry_run,
    }


def _done_already(plan: "ClonePlan", *, runs: bool) -> Iterator[Block]:
    origin = plan.info.origin
    since = f"{origin.app}@{origin.snapshot}" if origin else plan.source.ref
    yield (
        f"done already: {plan.info.name} in {plan.target_root} is a clone of {since}, "
        f"the moment of {instants.when(plan.source.time_ms)}, begun {instants.age(plan.info.created_ms)}"
    )
    if runs:
        yield "it has run on since; another clone of that moment needs another name"


def _parts(plan: "ClonePlan", source: str, flags: str, dry_run: bool) -> Iterator[Block]:
    done = "would clone" if dry_run else "finished cloning" if plan.resumed else "cloned"
    yield Title(f"{done} {source} as {plan.info.name} in {plan.target_root}")
    manifests = [plan.source.stages[stage] for stage in plan.source.versions]
    yield Table.each(
        manifests,
        {
            "stage": lambda at: at.stage,
            ">version": lambda at: f"v{at.version}",
            "committed": lambda at: instants.iso(at.time_ms),
            ">state shared": lambda at: formats.size(sum(sst.bytes for sst in at.ssts)) if at.table else "-",
            "goes on at": lambda at: formats.windows(
                f"{plan.topics[name]}[{partition}] {offset}"
                for name, read in at.inputs.items()
                if not read.upstream
                for partition, offset in enumerate(read.offsets)
            ),
        },
    )
    rows = sum(flight.rows for flight in plan.in_flight)
    if rows:
        yield f"{formats.plural(rows, 'row')} on the way between stages {'to copy' if dry_run else 'copied'}"
    publishes = plan.info.origin.sinks if plan.info.origin else {}
    silent = sorted({name for at in manifests for name in at.sinks} - publishes.keys())
    if publishes:
        yield f"it publishes {', '.join(f'{name} to {topic}' for name, topic in publishes.items())}"
    if silent:
        yield f"it does not publish {', '.join(silent)}: --sink {silent[0]}=TOPIC would"
    if dry_run:
        return
    if plan.info.origin:
        yield f"{plan.source.app}@{plan.info.origin.snapshot} keeps the state that the clone shares"
    yield f"run it: slackwater run FILE --app {plan.info.name}{flags}"
