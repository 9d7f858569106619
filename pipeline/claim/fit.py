"""What a run makes of a program that does not fit what is stored: it refuses, and says the way on (`fold/fits.py`)."""

from collections.abc import Iterable

from msgspec.structs import replace

from ...errors import Refused
from ...fold.fits import ANOTHER_STAGE, fit_inputs, fit_table, visible
from ...fold.kinds.kind import key_of_table, kind_of
from ...keep.migrate.migrate import of_column
from ...store.versions.manifest import Column, Manifest, Table
from ..api.app import App
from ..api.stage import Stage


def migrate_command(app: App) -> str:
    """What to type to have a changed program keep what is stored."""
    return f"slackwater migrate {app.file.name if app.file is not None else 'FILE'} --app {app.name}"


def _keep(app: App, changed: Iterable[str] = ()) -> str:
    """The way on from a program that does not fit what is stored, and what it would change."""
    done = "; ".join(changed)
    return f"keep what is stored: {migrate_command(app)} (--dry-run only looks){f' would do: {done}' if done else ''}"


def agreed(app: App, stage: Stage, table: Table | None, head: Manifest | None) -> Table | None:
    """The declared table, with the stored number of state partitions: the code only says how many at first.

    The code may change how it is compacted, and its time to live; what stored rows say of theirs stays true.
    """
    if head is None or (stored := head.table) == table:
        return table
    check_declared(app, stage, stored)
    found = fit_table(stage.name, stored, table, {})
    if found.refused is not None:
        raise found.refused
    if stored is None or table is None or found.table is None:
        return None
    if not found.same:
        before, now = (", ".join(f"{column.name} {column.type}" for column in each.values) for each in (stored, table))
        raise Refused(
            f"stage {stage.name!r}: its value columns are ({now}), but the stored state has ({before})",
            hint=_keep(app, map(of_column, found.columns)),
        )
    return replace(stored, compaction=table.compaction, ttl=found.table.ttl)


def check_declared(app: App, stage: Stage, stored: Table | None) -> None:
    """Refuse what does not fit, whatever the columns of the stage's rows are: those that are stored stand for them."""
    if stored is None or stage.state is None:
        found = fit_table(stage.name, stored, None if stage.state is None else Table((), (), 1), {})
        if found.refused is not None:
            raise found.refused
        return
    check_made_here(app.name, stage.name, stored)
    declared, known = app.key_of(stage), {column.name: column for column in stored.key}
    names, key = tuple(known), key_of_table(declared, [column.name for column in stored.values])
    kept, state = kind_of(stored.state), (stage.state if key == declared else stage.state.by_session("")) or stage.state
    columns = tuple(known.get(name, Column(name, "")) for name in key)
    table = replace(stored, key=columns, state=state.stored, ttl=stage.table.ttl)
    found = fit_table(stage.name, stored, table, {})
    if found.same:
        return
    if names != key:
        # Of sessions, the one that a stage's key has is among the values.
        sessions = visible(stored.values) if kept.key_column else ()
        raise Refused(
            f"stage {stage.name!r}: its key columns are ({', '.join(key)}), but the stored state has "
            f"({', '.join((*names, *sessions))})",
            hint=f"another key is another table: {ANOTHER_STAGE}; where only names changed, {_keep(app)}",
        )
    if stored.state != table.state:
        now = kind_of(table.state)
        raise Refused(
            f"stage {stage.name!r}: state is {now}, but was stored as {kept}",
            hint=_keep(app, kept.differences(now)) if kept.may_become(now) else ANOTHER_STAGE,
        )
    if found.refused is not None:
        raise found.refused


def check_made_here(app: str, stage: str, stored: Table | None) -> None:
    """Refuse a stage whose rows no program of ours makes. Raises `Refused`."""
    if stored is not None and (elsewhere := kind_of(stored.state).elsewhere):
        raise Refused(
            f"stage {app}/{stage} is {elsewhere}: no program goes on with it",
            hint=f"slackwater adopt CHECKPOINT PROGRAM --stage {stage} makes it a stage of a program",
        )


def check_inputs(app: App, stage: Stage, head: Manifest) -> None:
    """Refuse inputs that are not those that are stored."""
    inputs = fit_inputs(head, app.writers(stage))
    if inputs.new or inputs.gone:
        declared, stored = (", ".join(map(repr, sorted(names))) for names in (stage.inputs, head.inputs))
        raise Refused(
            f"stage {stage.name!r} reads {declared}, but its stored state comes from {stored}",
            hint=_keep(app),
        )
    for name, (was, writer) in inputs.writers.items():
        rename = f"{migrate_command(app)} --rename-stage {was}={writer}"
        if was and writer:
            raise Refused(
                f"stage {stage.name!r}: its input {name!r} is written by {writer!r} now, and was by {was!r}",
                hint=f"where that is the same stage under another name: {rename}",
            )
        ours = f"written by its stage {was or writer!r}"
        now, before = ("a topic from outside the app", ours) if was else (ours, "a topic from outside the app")
        raise Refused(
            f"stage {stage.name!r}: its input {name!r} is {now} now, and was {before}",
            hint="give the topic, or the repartition topic, another name: then it is another input, read from its "
            "beginning",
        )
