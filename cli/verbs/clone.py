"""`slackwater clone`: a new app from a moment of another; the clones that there are, made anew, and removed."""

from collections.abc import Callable

from ...errors import NotFound, Usage
from ..options import DRY_RUN, YES_REALLY, Many, argument, flag, option, pairs, span
from ..session import Session, group, verb
from ..terminal import Progress

words = group()

_CLONE = argument("NAME", "Name of the clone.")
_FENCE = flag("--fence", "Also when a runner holds it: that stops.")


def _copying(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress("", f"{name}: {done:,} of {total:,} SSTs written")


@verb(
    "slackwater clone flights flights-staging --ttl 3d --reason 'try the new program'",
    "slackwater clone flights@before-deploy flights-staging --topic flights=flights-corrected",
    "slackwater clone flights/carriers@v16 flights-staging --to s3://staging/slackwater --dry-run",
    "slackwater clone flights flights-copy --deep --to s3://elsewhere/slackwater",
    "slackwater clone shop shop-next --empty               # a changed program, over all of the past",
    "slackwater clone shop shop-test --mask customers.email='{}@example.org' --mask customers.name=hash",
    of=words,
    whole=True,
    kafka=True,
    changes=True,
)
def clone(
    session: Session,
    source: str = argument("SRC[@REF]", "The app to clone, and the moment. Default: now."),
    name: str = argument("DST", "Name of the clone."),
    topic: Many = option("NAME=OTHER", "Let the clone read topic OTHER where the app says NAME; may be repeated."),
    sink: Many = option(
        "NAME=TOPIC", "Let the clone publish its sink NAME to this topic; may be repeated. Default: nothing."
    ),
    to: str | None = option("ROOT", "Store root of the clone. Default: the source's."),
    deep: bool = flag("--deep", "Copy everything into that other root, after which the source may vanish."),
    empty: bool = flag("--empty", "Take no state: the clone reads its topics from the beginning."),
    mask: Many = option(
        "TABLE.COLUMN=HOW",
        "Hide a column: hash, null, or a text with {} where the hash is to stand; may be repeated.",
    ),
    ttl: int | None = span("How long the clone is wanted: clone rm --expired removes it then. Default: for ever."),
    owner: str = option("WHO", "Who has it. Default: you, as user@host.", ""),
    reason: str = option("TEXT", "What it is for.", ""),
    dry_run: bool = DRY_RUN,
) -> None:
    """Make a new app from a moment of another one.

    The clone has the source's state, its offsets, and the records that were on the way between its stages. No
    state is copied, however large: the clone points at the source's SSTs, and a snapshot of the source
    keeps them. The clone has repartition topics of its own and never writes to the source's. It publishes
    nothing unless --sink says where to. An interrupted clone is finished by the same command, and is there for nobody
    before. --store is where the source is, --to where the clone goes.
    """
    terms = {
        "topics": pairs("--topic", topic, "NAME=OTHER", "flights=flights-corrected"),
        "sinks": pairs("--sink", sink, "NAME=TOPIC", "alerts=staging-alerts"),
        "masks": pairs("--mask", mask, "TABLE.COLUMN=HOW", "customers.email=hash"),
        "deep": deep,
        "empty": empty,
        "ttl_ms": ttl,
        "reason": reason,
    }
    try:
        with session.progress() as progress:
            on_progress, app = _copying(progress, name), session.app(source)
            made = app.cloned(source, name, to, terms, dry_run=dry_run, owner=owner, on_progress=on_progress)
        session.show(made)
    except NotFound as error:
        if error.what == "app" and session.store_option and not to:
            error.hint += "; --store is where the source is, --to says where the clone goes"
        raise


@verb("slackwater clone list", "slackwater clone list flights", of=words, name="list")
def list_(session: Session, source: str = argument("[SRC]", "Only clones of this app. Default: of all.", "")) -> None:
    """List the clones, who has each and why, until when, and what it keeps in its source.

    These are the clones under the store root, and those of its apps under other roots. `keeps alone` are the bytes that
    stay in the source because of this clone and of nothing else, once retention lets its history go.
    """
    session.show(session.client.clones(source))


@verb(
    "slackwater clone refresh flights-staging --dry-run",
    "slackwater clone refresh flights-staging --fence     # stop its runner",
    of=words,
    kafka=True,
    changes=True,
)
def refresh(
    session: Session,
    name: str = _CLONE,
    fence: bool = _FENCE,
    yes_really: str = YES_REALLY,
    dry_run: bool = DRY_RUN,
) -> None:
    """Make a clone anew from the newest moment of its source.

    It keeps its name, topics, sinks, masks, owner, reason and time to live, which begins again. What it has done since
    is gone. Whatever interrupts it, the same command goes on with it.
    """
    with session.progress() as progress:
        on_progress, how = _copying(progress, name), {"fence": fence, "dry_run": dry_run}
        done = session.app(name).refresh(yes_really=yes_really, on_progress=on_progress, **how)
    session.show(done)


@verb(
    "slackwater clone rm flights-staging --dry-run",
    "slackwater clone rm flights-staging --topics",
    "slackwater clone rm --expired --topics       # for a job that runs every night",
    of=words,
    kafka=True,
    changes=True,
)
def rm(
    session: Session,
    name: str = argument("[NAME]", "Name of the clone.", ""),
    expired: bool = flag("--expired", "All clones under the store root whose time is over."),
    topics: bool = flag("--topics", "Also its repartition topics and consumer groups in Kafka."),
    fence: bool = _FENCE,
    yes_really: str = YES_REALLY,
    dry_run: bool = DRY_RUN,
) -> None:
    """Remove a clone, or those whose time is over.

    As app rm, but never an app that is no clone, nor one that was promoted. What its source kept for it is let go. With
    --expired, a clone that a runner holds stays, unless --fence stops it; the others go all the same, and the exit code
    is 1.
    """
    if bool(name) == expired:
        raise Usage("clone rm takes the name of a clone, or --expired", hint="slackwater clone list shows the clones")
    how = {"topics": topics, "fence": fence, "dry_run": dry_run}
    if expired:
        session.show(session.client.remove_expired(topics=topics, fence=fence, dry_run=dry_run))
        return
    session.show(session.app(name).remove_clone(yes_really=yes_really, **how))
