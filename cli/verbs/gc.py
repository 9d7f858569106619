"""`slackwater gc`: delete what nothing needs any more, and say why the rest stays."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...durations import HOUR_MS, format_ms
from ...errors import Usage
from ...results import formats
from ...results.document import Block, Table, Title
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    from ...snapshot.gc.collect import Collected

_RULES = {
    "head": "newest",
    "retention": "retention",
    "versions": "newest versions",
    "hourly": "hourly",
    "daily": "daily",
    "young": "less than an hour old",
    "unread": "not read yet downstream",
    "unpublished": "not published yet",
    "request": "snapshot under way",
    "snapshot": "snapshots",
    "clone": "clones",
}


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
        title = f"{found.object} {'is kept' if found.kept else 'goes at the next collection'}"
        session.show(found, Title(title), *found.reasons)
        return
    done = collect(session.store, app_name, rules, by=whoami(), dry_run=dry_run, margin_ms=margin)
    session.show(done, *_parts(done))


def _parts(done: "Collected") -> Iterator[Block]:
    verb = "would collect" if done.dry_run else "collected"
    what = f"{formats.plural(done.objects, 'object')}, {formats.size(done.bytes)}" if done.objects else "nothing"
    yield Title(f"{verb} {what} of {done.app}")
    yield Table.each(
        done.stages,
        {
            "stage": lambda each: each.stage,
            ">versions gone": lambda each: formats.count(each.versions),
            ">SSTs gone": lambda each: formats.count(each.ssts),
            ">size gone": lambda each: formats.size(each.bytes),
            ">versions kept": lambda each: formats.count(each.kept_versions),
            "whole from": lambda each: f"v{each.first} to v{each.head}",
            ">size kept": lambda each: formats.size(each.kept_bytes),
        },
    )
    from ...snapshot.take.waiting import ask_whether_gone

    words = _RULES | ({"retention": "that no rule lets go"} if done.retention.keeps_everything else {})
    for each in done.stages:
        rules = ", ".join(f"{formats.count(number)} {words[rule]}" for rule, number in each.rules.items())
        yield f"{each.stage} keeps {rules}"
    for each in done.stages:
        for reader in each.held_up_by:
            yield (
                f"{each.stage} keeps versions for {reader}, which has not committed for an hour or more: "
                f"{ask_whether_gone(done.app, [reader])}"
            )
    if done.records:
        yield f"{formats.plural(done.records, 'object')} of records in flight that no snapshot names"
    if done.leftovers:
        yield f"{formats.plural(done.leftovers, 'write')} that had broken off"
    for gone in done.absent:
        yield f"snapshot {gone.snapshot} pins {gone.stage}@v{gone.version}, which is not there; what else it pins stays"
    waiting = sum(each.waiting_ssts for each in done.stages)
    if waiting:
        yield f"{formats.plural(waiting, 'SST')} that nothing names yet may be named by the next batch, and stay"
    if done.retention.keeps_everything:
        yield "no rule of retention is set, so the whole history stays: [retention] in slackwater.toml has the rules"
