"""What a program changes of a stored app, stage by stage: a plan, or why it cannot be. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec.structs import replace as with_fields

from ...errors import NotFound, Refused
from ...state.fits import ColumnChange, Declared, DeclaredStage, fit_inputs, fit_table, likely_renames, visible
from ...state.kinds.kind import kind_of
from ...state.records import unread
from ...store.sst.arrow_types import schema_of
from ...store.sst.evolution import fits
from ...store.versions.commit import is_retired
from ...store.versions.manifest import Input, Manifest, Ttl
from ..cut.graph import order
from ..cut.migrations import MigratedStage

Names = Mapping[str, str]  # until now, and from then on


@dataclass(frozen=True, slots=True)
class StageChange:
    """What becomes of one stage."""

    stage: str
    kind: Literal["changed", "added", "retired"]
    version: int = 0
    """Its newest version; 0 for one that is added."""
    columns: tuple[ColumnChange, ...] = ()
    inputs: tuple[str, ...] = ()
    """What it reads from then on and did not before; `gone` it reads no more."""
    gone: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """The channels that it writes from its next start on; `dropped` it writes no more then."""
    dropped: tuple[str, ...] = ()
    ttl: tuple[Ttl | None, Ttl | None] | None = None
    """Its time to live before and after, where that is another."""
    due: tuple[str, str] | None = None
    """What its rows fall due by before and after, as it is declared; None where that is the same."""
    others: bool = False
    """Whether the order of its columns, or how it is declared, is another, and nothing else of it is."""
    guesses: tuple[tuple[str, str], ...] = ()
    """Columns that are removed, and the added one that each may be: nobody said so."""
    formerly: str = ""
    """Its name until now, where it gets another."""
    may_be: str = ""
    """Of one that is retired, the added one that it may be under another name: nobody said so."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a program changes of an app."""

    app: str
    changes: tuple[StageChange, ...]
    """Of the stages that it changes, upstream first."""
    steps: Mapping[str, MigratedStage] = field(default_factory=dict)
    """What the migration commits, of every stage that the app has."""
    after: int = 0
    """The number of the app's newest migration, 0 when there was none: this one is the next."""

    @property
    def unread(self) -> dict[str, tuple[str, ...]]:
        """What stages begin to read, by stage: where each input begins, the plan does not know."""
        return {each.stage: each.inputs for each in self.changes if each.kind == "changed" and each.inputs}


def plan(
    heads: Mapping[str, Manifest], declared: Declared, renames: Names, *, stages: Names | None = None, after: int = 0
) -> Plan:
    """What becomes of the stages of an app, whose newest versions these are, under a program.

    `renames` are columns that have another name in it: `old` (of whichever table has it) or `stage.old` to the new
    name; `stages` those of stages, old to new. `after` is the number of the newest migration that they went through.

    Raises `NotFound` where a rename names a column or stage that is not there, with the nearest, and `Refused` where
    what is stored cannot be kept under the program, with why and how it can.
    """
    # Without those that an earlier call has given their name.
    called = {old: new for old, new in (stages or {}).items() if old not in heads or heads[old].called != new}
    _check_names(heads, declared, called)
    former = {new: old for old, new in called.items()}
    heads = _under_names(heads, called)
    by_stage = _by_stage(heads, declared, renames, called)
    changes: list[StageChange] = []
    steps: dict[str, MigratedStage] = {}
    for name in order(heads):
        head, stage = heads[name], declared.stages.get(name)
        if stage is None:
            if not head.retired:
                may_be = _likely(head, heads, declared)
                changes.append(StageChange(name, "retired", head.version, may_be=may_be))
                steps[name] = MigratedStage(retires=True)
            else:
                steps[name] = MigratedStage()
            continue
        if head.called:
            raise is_retired(head)
        change, step = _stage(head, stage, by_stage.get(name, {}))
        if name in former:
            change = replace(change or StageChange(name, "changed", head.version), formerly=former[name])
            step = with_fields(step, called=name)
        steps[former.get(name, name)] = step
        if change is not None:
            if head.retired:
                raise Refused(
                    f"stage {head.app}/{name} is retired since v{head.version}, and the program has it changed",
                    hint="bring it back as it was first (slackwater run), then change it; or give it a new name",
                )
            changes.append(change)
    changes += [StageChange(name, "added") for name in declared.stages if name not in heads]
    _check_channels(heads, declared)
    found = Plan(declared.app, tuple(changes), steps, after)
    for reader, names in found.unread.items():
        for name in names:
            if (sender := declared.stages[reader].inputs[name]) in former:
                raise Refused(
                    f"stage {reader!r} would begin to read {name!r} of {sender!r} in the migration that renames "
                    f"{former[sender]!r} to that",
                    hint="do it in two: rename the stage first, and then let the other read it",
                )
    return found


def _stage(head: Manifest, stage: DeclaredStage, renames: Names) -> tuple[StageChange | None, MigratedStage]:
    found, inputs = fit_table(stage.name, head.table, stage.table, renames), fit_inputs(head, stage.inputs)
    if found.refused is not None:
        raise found.refused
    for name, (was, now) in inputs.writers.items():
        before, after = (f"stage {each!r}" if each else "nobody of the app" for each in (was, now))
        raise Refused(
            f"stage {stage.name!r}: its input {name!r} is written by {after} now, and was by {before}",
            hint="give the repartition topic a new name: then it is another input, read from its beginning",
        )
    table, columns, others = found.table, found.columns, found.others
    outputs = tuple(name for name in stage.outputs if name not in head.outputs)
    dropped = tuple(name for name in head.outputs if name not in stage.outputs)
    lifetimes = due = None
    if head.table is not None and table is not None:
        lifetimes = head.table.ttl, table.ttl
        due = kind_of(head.table.state).renamed(renames).due_text, kind_of(table.state).due_text
    step = MigratedStage(
        table=table if columns or others else None,
        schema=head.table.schema if head.table is not None and (columns or others) else 0,
        gone=inputs.gone,
    )
    change = StageChange(
        stage.name,
        "changed",
        head.version,
        columns=columns,
        inputs=inputs.new,
        gone=inputs.gone,
        outputs=outputs,
        dropped=dropped,
        ttl=lifetimes if lifetimes and lifetimes[0] != lifetimes[1] else None,
        due=due if due and due[0] != due[1] else None,
        others=others,
        guesses=likely_renames(columns),
    )
    empty = StageChange(stage.name, "changed", head.version)
    return (change if change != empty else None), step


def _check_channels(heads: Mapping[str, Manifest], declared: Declared) -> None:
    """See that rows on their way can be read by the program, in the columns that it gives their channel."""
    for sender, stage in declared.stages.items():
        for name, ddl in stage.outputs.items():
            output = heads[sender].outputs.get(name) if sender in heads else None
            if output is None or output.schema == ddl or fits(schema_of(output.schema), schema_of(ddl)):
                continue
            if not any(name in each.inputs for each in declared.stages.values()):
                continue
            reading = {one.stage: one.inputs[name] for one in heads.values() if name in one.inputs and not one.retired}
            # Between a migration and the first batch of a new reader there may be nobody who reads it.
            places = reading or {each.stage: each.stopped[name] for each in heads.values() if name in each.stopped}
            for reader, source in places.items():
                left = unread(output, source)
                if source.offsets != output.ends if left is None else left > 0:
                    raise Refused(
                        f"rows are on their way in {name!r} to {reader!r}, in other columns than the program has",
                        hint="let the old program run until they are read (slackwater run OLD --until-caught-up), "
                        "and migrate then",
                    )


def _by_stage(
    heads: Mapping[str, Manifest], declared: Declared, renames: Names, called: Names
) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for said, new in renames.items():
        tables = {name: visible(head.table.columns) for name, head in heads.items() if head.table and not head.retired}
        stage, dot, old = said.partition(".")
        stage = called.get(stage, stage)
        if dot and stage in tables:
            if old not in tables[stage] and new in tables[stage]:
                continue  # done already
            found.setdefault(stage, {})[old] = new
            continue
        having = [name for name, names in tables.items() if said in names and name in declared.stages]
        if not having:
            if any(new in names for names in tables.values()):
                continue  # done already
            raise NotFound(
                f"column of app {declared.app!r}",
                said,
                {column for names in tables.values() for column in names},
                hint="--rename OLD=NEW names a stored column first; --rename TABLE.OLD=NEW one of a certain table",
            )
        # A column that several tables have is renamed where the program has the new name.
        programs = {name: table for name in having if (table := declared.stages[name].table) is not None}
        for name in [name for name, table in programs.items() if new in visible(table.columns)] or having:
            found.setdefault(name, {})[said] = new
    return found


_OPTION = "--rename-stage OLD=NEW"


def _check_names(heads: Mapping[str, Manifest], declared: Declared, called: Names) -> None:
    """See that stages can have these names, old to new."""
    app = declared.app
    for old, new in called.items():
        if old not in heads:
            raise NotFound(f"stage of app {app!r}", old, heads, hint=f"{_OPTION} names a stored stage first")
        if new not in declared.stages:
            raise NotFound(f"stage that the program declares of {app!r}", new, declared.stages, hint=f"{_OPTION}")
        if heads[old].retired:
            raise is_retired(heads[old])
        if new in heads:
            raise Refused(
                f"app {app!r} {'had' if heads[new].retired else 'has'} a stage {new!r} already, whose history that "
                f"name means: {old!r} cannot become that",
                hint="choose a name that no stage of the app ever had",
            )
        if old in declared.stages:
            raise Refused(
                f"the program has a stage {old!r}, too: that name would mean two histories of {app!r}",
                hint=f"leave {old!r} as it is, and the new stage its name; or call that one otherwise",
            )
        if list(called.values()).count(new) > 1:
            raise Refused(f"two stages of {app!r} cannot both become {new!r}")
        # Whoever has still to read what the stage sent must have begun to: rows are not kept for others.
        for name, output in heads[old].outputs.items():
            if any(output.sent) and not any(readers(heads, name, old)):
                raise Refused(
                    f"rows that {old!r} wrote to {name!r} wait for a stage that has not begun to read them",
                    hint="start the program once before the stage is renamed (slackwater run FILE --until-caught-up), "
                    "or retire and migrate it without that channel first",
                )


def readers(heads: Mapping[str, Manifest], channel: str, sender: str) -> Iterator[Input]:
    """Where stages that are not retired stand on a sender's channel, or stopped reading it."""
    for head in heads.values():
        for source in (head.inputs.get(channel), head.stopped.get(channel)) if not head.retired else ():
            if source is not None and source.upstream == sender:
                yield source


def _under_names(heads: Mapping[str, Manifest], called: Names) -> dict[str, Manifest]:

    def sources(inputs: Mapping[str, Input]) -> dict[str, Input]:
        return {name: with_fields(one, upstream=called.get(one.upstream, one.upstream)) for name, one in inputs.items()}

    return {
        called.get(name, name): with_fields(
            head, stage=called.get(name, name), inputs=sources(head.inputs), stopped=sources(head.stopped)
        )
        for name, head in heads.items()
    }


def _likely(head: Manifest, heads: Mapping[str, Manifest], declared: Declared) -> str:
    """The added stage that one may be that the program has no more: the only one like it; empty for none."""
    found = []
    for name, one in declared.stages.items():
        if head.table is not None and one.table is not None:
            alike = head.table.key == one.table.key
        else:
            alike = head.table is one.table and head.outputs.keys() == one.outputs.keys()
        if name not in heads and alike and head.inputs.keys() == one.inputs.keys():
            found.append(name)
    return found[0] if len(found) == 1 else ""
