"""`slackwater gc`: delete what nothing needs any more, and say why the rest stays."""

from typing import TYPE_CHECKING

from ...durations import HOUR_MS, format_ms
from ...errors import Usage
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    pass


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
    from ...results import kept
    from ...snapshot.gc.collect import MARGIN_MS, collect
    from ...snapshot.gc.explain import explain as why
    from ...snapshot.take.audit_log import whoami

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
    done = collect(session.store, app_name, rules, by=whoami(), dry_run=dry_run, margin_ms=margin)
    session.show(kept.collected(done))
