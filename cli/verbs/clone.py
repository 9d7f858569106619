"""`slackwater clone`: create, list, refresh and remove clones."""

from collections.abc import Callable
from typing import Unpack

from ...client.declared.operations import CloneOptions, RefreshOptions, RemoveCloneOptions
from ...errors import NotFound, Usage
from ..options import DRY_RUN, argument, duration_option, flag, option
from ..session import Session, group, verb
from ..terminal import Progress

clone_group = group()

_CLONE = argument("NAME", "Name of the clone.")


def _copying(progress: Progress, name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress("", f"{name}: {done:,} of {total:,} SSTs written")


@verb(
    "slackwater clone flights flights-staging --ttl 3d --reason 'try the new program'",
    "slackwater clone flights@before-deploy flights-staging --topic flights=flights-corrected",
    "slackwater clone flights/carriers@v16 flights-staging --to s3://staging/slackwater --dry-run",
    "slackwater clone flights flights-copy --deep --to s3://elsewhere/slackwater",
    "slackwater clone shop shop-next --empty               # to run a changed program over the whole past",
    "slackwater clone shop shop-test --mask customers.email='{}@example.org' --mask customers.name=hash",
    parent=clone_group,
    is_group_command=True,
    kafka=True,
    changes=True,
    declared_first=True,
)
def clone(
    session: Session,
    source: str = argument("SRC[@REF]", "The app to clone, and the moment. Default: now."),
    name: str = argument("DST", "Name of the clone."),
    to: str | None = option("ROOT", "Store root of the clone. Default: the source's."),
    ttl: int | None = duration_option("Time to live. `clone rm --expired` removes expired clones. Default: no limit."),
    dry_run: bool = DRY_RUN,
    **options: Unpack[CloneOptions],
) -> None:
    try:
        with session.progress() as progress:
            on_progress, app = _copying(progress, name), session.app(source)
            result = app.clone_ref(source, name, to, ttl or 0, options, dry_run=dry_run, on_progress=on_progress)
        session.show(result)
    except NotFound as error:
        if error.what == "app" and session.store_option and not to:
            error.hint += "; --store is the source's store root, --to that of the clone"
        raise


@verb("slackwater clone list", "slackwater clone list flights", parent=clone_group, name="list")
def list_(session: Session, source: str = argument("[SRC]", "Only clones of this app. Default: all.", "")) -> None:
    """List clones with owner, purpose, expiry and the storage kept for them.

    Covers the store root, and clones of its apps under other roots. `keeps alone`: bytes that the source keeps only for
    this clone after gc.
    """
    session.show(session.client.clones(source))


@verb(
    "slackwater clone refresh flights-staging --dry-run",
    "slackwater clone refresh flights-staging --fence     # stop its runner",
    parent=clone_group,
    kafka=True,
    changes=True,
)
def refresh(session: Session, name: str = _CLONE, **options: Unpack[RefreshOptions]) -> None:
    with session.progress() as progress:
        done = session.app(name).refresh(on_progress=_copying(progress, name), **options)
    session.show(done)


@verb(
    "slackwater clone rm flights-staging --dry-run",
    "slackwater clone rm flights-staging --topics",
    "slackwater clone rm --expired --topics       # for a job that runs every night",
    parent=clone_group,
    kafka=True,
    changes=True,
)
def rm(
    session: Session,
    name: str = argument("[NAME]", "Name of the clone.", ""),
    expired: bool = flag("--expired", "All expired clones under the store root."),
    **options: Unpack[RemoveCloneOptions],
) -> None:
    """Remove a clone, or all expired clones.

    Like app rm, but refuses promoted clones and apps that are not clones. Releases the files that the source kept for
    the clone. With --expired, clones that are running, protected or sources of clones are kept (exit code 1); --fence
    stops a runner.
    """
    if bool(name) == expired:
        raise Usage("clone rm takes the name of a clone, or --expired", hint="slackwater clone list shows the clones")
    if expired:
        topics, fence, dry_run = options["topics"], options["fence"], options["dry_run"]
        session.show(session.client.remove_expired(topics=topics, fence=fence, dry_run=dry_run))
        return
    session.show(session.app(name).remove_clone(**options))
