"""`slackwater compact`: merging the SSTs of an app's tables in a process of its own."""

import os
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from ... import instants
from ...errors import Usage
from ...results.document import Result
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.maintain.compact import AppCompactor

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
    from ...pipeline.run.stopping import stop_signals
    from ...results.kept import to_compact
    from ...snapshot.maintain.compact import AppCompactor, plan
    from ...snapshot.take.audit_log import whoami

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
        cache, by = session.settings.open_cache(), whoami()
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
    from ...results.kept import compacted, compacted_line
    from ...snapshot.maintain.compact import merged_last

    app_name = compactor.app
    with session.output.progress() as progress:
        done = compactor.once(full=full, on_version=lambda each: progress(compacted_line(each)))
    earlier = () if done else merged_last(compactor.store, app_name, compactor.wanted)
    session.show(compacted(app_name, done, earlier))
