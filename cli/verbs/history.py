"""`slackwater history`: each change of one key."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ... import instants
from .. import options
from ..replaying import needed_program, program_here
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.bisect.record import Guilty
    from ...snapshot.diff.history import Change, KeyHistory
    from ...store.read.cache import SstCache


@verb(
    "slackwater history flights carriers UA",
    "slackwater history flights aircraft N14228 --limit 0 --json",
    """slackwater history shop baskets '{"country": "DE", "number": 17}'""",
    "slackwater history flights carriers UA --limit 3 --why --code flights.py",
    kafka=True,
)
def history(
    session: Session,
    app_name: options.App,
    table: options.Table,
    key: options.Key,
    limit: int = options.option("N", "Show this many changes; 0 for all.", 20, min=0),
    why: bool = options.flag("--why", "Replay each change, and name the input record behind it."),
    code: Path | None = options.option(
        "FILE", "The program that ran, for --why. Default: [programs] of slackwater.toml."
    ),
    verbose: bool = options.flag("--verbose", "Also say what was read for it.", "-v"),
) -> None:
    """Show each change of the row of one key, newest first.

    With the version that made it, the offsets that this version read, and the values before and after. Rows that
    expired are among them. Versions that did not write the key are not read.
    """
    from ...results.history import key_history as shown
    from ...snapshot.diff.history import key_history

    with closing(session.settings.open_cache()) as cache:
        found = key_history(
            session.store, cache, app_name, table, options.key_values(key), limit=limit, now_ms=instants.now_ms()
        )
        behind = _behind(session, found, cache, code) if why and found.changes else None
    session.show(shown(found, " ".join(key), behind, limit=limit, verbose=verbose))


def _behind(session: Session, found: "KeyHistory", cache: "SstCache", code: Path | None) -> "tuple[Guilty | None, ...]":
    """The record behind each change; None for a change that no batch made, or nobody knows which."""
    file = needed_program(session, found.app, code, "to replay the batches with (--why)", "FILE, the program that ran")
    with (
        session.output.progress() as progress,
        program_here(session, found.app, file, cache, progress) as program,
    ):
        from ...pipeline.replay.why import why

        def record_of(change: "Change") -> "Guilty | None":
            written = found.written(change)
            if written is None:
                return None
            progress(f"replaying {written.stage} v{written.version}")
            return why(program, written.stage, written.version, written.key)

        return tuple(map(record_of, found.changes))
