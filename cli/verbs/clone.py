"""`slackwater clone`: an app of its own, from another app's moment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import NotFound, Usage
from .. import options
from ..session import Session, store_flag, verb

if TYPE_CHECKING:
    pass


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
    from ...results.kept import cloned
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
