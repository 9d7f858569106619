"""Plan of the changes that a program makes to a stored app, stage by stage. Refuses impossible changes.

Pure functions.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec.structs import replace as with_fields

from ...errors import NotFound, Refused
from ...state.fits import ColumnChange, Declared, DeclaredStage, fit_inputs, fit_table, likely_renames, visible_names
from ...state.kinds.kind import kind_of
from ...state.records import count_unread
from ...store.sst.arrow_types import schema_from_ddl
from ...store.sst.schema import can_read_rows_of
from ...store.versions.commit import retired_error
from ...store.versions.manifest import Input, Manifest, Ttl
from ...store.versions.side_tables import part_tables
from ..cut.graph import topological_order
from ..cut.migrations import MigratedStage

Renames = Mapping[str, str]  # old to new


@dataclass(frozen=True, slots=True)
class StageChange:
    """Change of one stage."""

    stage: str
    kind: Literal["changed", "added", "retired"]
    version: int = 0
    columns: tuple[ColumnChange, ...] = ()
    inputs: tuple[str, ...] = ()
    """Inputs that the program adds to the stage. `gone` has the inputs that it removes."""
    gone: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    ttl: tuple[Ttl | None, Ttl | None] | None = None
    due: tuple[str, str] | None = None
    """Declarations of the rows' due time, stored and in the program; None if they are equal."""
    others: bool = False
    """True if the program changes the order of the columns, or the format of their declarations."""
    guesses: tuple[tuple[str, str], ...] = ()
    formerly: str = ""
    may_be: str = ""
    """Name of an added stage that is probably the new name of this retired stage; empty for none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that a program makes to an app."""

    app: str
    changes: tuple[StageChange, ...]
    steps: Mapping[str, MigratedStage] = field(default_factory=dict)
    after: int = 0

    @property
    def unread(self) -> dict[str, tuple[str, ...]]:
        """New inputs, by stage, whose start position is not chosen yet."""
        return {change.stage: change.inputs for change in self.changes if change.kind == "changed" and change.inputs}


def plan_changes(
    heads: Mapping[str, Manifest],
    declared: Declared,
    renames: Renames,
    *,
    stages: Renames | None = None,
    after: int = 0,
) -> Plan:
    """Plan the changes that a program makes to an app whose newest versions are `heads`.

    `renames` maps columns to new names: `old` (in every table that has it) or `stage.old`; `stages` maps old to new
    names of stages. `after` is the number of the app's newest migration.

    Raises `NotFound` if a rename names an unknown column or stage, and `Refused` with a reason and a hint if
    stored state cannot be kept under the program.
    """
    # Skip stages that an earlier call has renamed.
    called = {old: new for old, new in (stages or {}).items() if old not in heads or heads[old].called != new}
    _check_names(heads, declared, called)
    former = {new: old for old, new in called.items()}
    heads = _with_new_names(heads, called)
    by_stage = _renames_by_stage(heads, declared, renames, called)
    changes: list[StageChange] = []
    steps: dict[str, MigratedStage] = {}
    for name in topological_order(heads):
        head, stage = heads[name], declared.stages.get(name)
        if stage is None:
            if not head.retired:
                may_be = _likely_successor(head, heads, declared)
                changes.append(StageChange(name, "retired", head.version, may_be=may_be))
                steps[name] = MigratedStage(retires=True)
            else:
                steps[name] = MigratedStage()
            continue
        if head.called:
            raise retired_error(head)
        change, step = _plan_stage(head, stage, by_stage.get(name, {}))
        if name in former:
            change = replace(change or StageChange(name, "changed", head.version), formerly=former[name])
            step = with_fields(step, called=name)
        steps[former.get(name, name)] = step
        if change is not None:
            if head.retired:
                raise Refused(
                    f"stage {head.app}/{name} was retired at v{head.version}, and the program declares it with changes",
                    hint="first bring it back unchanged (slackwater run), then migrate; or give it a new name",
                )
            changes.append(change)
    changes += [StageChange(name, "added") for name in declared.stages if name not in heads]
    _check_channels(heads, declared)
    result = Plan(declared.app, tuple(changes), steps, after)
    for reader, names in result.unread.items():
        for name in names:
            if (sender := declared.stages[reader].inputs[name]) in former:
                raise Refused(
                    f"stage {reader!r} cannot start reading {name!r} of {sender!r} in the same migration that renames "
                    f"{former[sender]!r} to {sender!r}",
                    hint="migrate twice: first rename the stage, then add the input",
                )
    return result


def _plan_stage(head: Manifest, stage: DeclaredStage, renames: Renames) -> tuple[StageChange | None, MigratedStage]:
    stored_parts = {name: side.table for name, side in part_tables(head).items()}
    table_fit = fit_table(
        stage.name, head.table, stage.table, renames, stored_parts=stored_parts, declared_parts=stage.parts
    )
    inputs = fit_inputs(head, stage.inputs)
    if table_fit.refused is not None:
        raise table_fit.refused
    for name, (old, new) in inputs.writers.items():
        old_writer, new_writer = (f"stage {writer!r}" if writer else "no stage of the app" for writer in (old, new))
        raise Refused(
            f"stage {stage.name!r}: its input {name!r} is now written by {new_writer}, before by {old_writer}",
            hint="give the repartition topic a new name, so that it is a new input, read from its beginning",
        )
    table, columns, is_redeclared = table_fit.table, table_fit.columns, table_fit.is_redeclared
    outputs = tuple(name for name in stage.outputs if name not in head.outputs)
    dropped = tuple(name for name in head.outputs if name not in stage.outputs)
    lifetimes = due = None
    if head.table is not None and table is not None:
        lifetimes = head.table.ttl, table.ttl
        due = kind_of(head.table.state).renamed(renames).due_text, kind_of(table.state).due_text
    step = MigratedStage(gone=inputs.removed)
    if head.table is not None and (columns or is_redeclared):
        parts, renamed_parts = dict(table_fit.parts), dict(table_fit.renamed_parts)
        step = with_fields(step, table=table, parts=parts, renamed_parts=renamed_parts, schema=head.table.schema)
    unchanged = StageChange(stage.name, "changed", head.version)
    change = replace(
        unchanged,
        columns=columns,
        inputs=inputs.new,
        gone=inputs.removed,
        outputs=outputs,
        dropped=dropped,
        ttl=lifetimes if lifetimes and lifetimes[0] != lifetimes[1] else None,
        due=due if due and due[0] != due[1] else None,
        others=is_redeclared,
        guesses=likely_renames(columns),
    )
    return (change if change != unchanged else None), step


def _check_channels(heads: Mapping[str, Manifest], declared: Declared) -> None:
    """Raise `Refused` if unread rows of a channel do not fit the columns that the program declares for the channel."""
    for sender, stage in declared.stages.items():
        for name, ddl in stage.outputs.items():
            output = heads[sender].outputs.get(name) if sender in heads else None
            if (
                output is None
                or output.schema == ddl
                or can_read_rows_of(schema_from_ddl(output.schema), schema_from_ddl(ddl))
            ):
                continue
            if not any(name in receiver.inputs for receiver in declared.stages.values()):
                continue
            inputs = {
                head.stage: head.inputs[name] for head in heads.values() if name in head.inputs and not head.retired
            }
            # After a migration, a channel has no reader until the first batch of the new reader.
            positions = inputs or {head.stage: head.stopped[name] for head in heads.values() if name in head.stopped}
            for reader, source in positions.items():
                num_unread = count_unread(output, source)
                if source.offsets != output.ends if num_unread is None else num_unread > 0:
                    raise Refused(
                        f"in-flight rows in {name!r} to {reader!r} do not fit the columns that the program declares",
                        hint="run the old program until they are read (slackwater run OLD --until-caught-up), "
                        "then migrate",
                    )


def _renames_by_stage(
    heads: Mapping[str, Manifest], declared: Declared, renames: Renames, called: Renames
) -> dict[str, dict[str, str]]:
    by_stage: dict[str, dict[str, str]] = {}
    tables = {
        name: visible_names(head.table.columns) for name, head in heads.items() if head.table and not head.retired
    }
    for renamed, new in renames.items():
        stage, dot, old = renamed.partition(".")
        stage = called.get(stage, stage)
        if not dot or stage not in tables:
            for name in _stages_to_rename(renamed, new, tables, declared):
                by_stage.setdefault(name, {})[renamed] = new
        elif old in tables[stage] or new not in tables[stage]:  # else it is done already
            by_stage.setdefault(stage, {})[old] = new
    return by_stage


def _stages_to_rename(
    renamed: str, new: str, tables: Mapping[str, Collection[str]], declared: Declared
) -> Collection[str]:
    owners = [name for name, names in tables.items() if renamed in names and name in declared.stages]
    if not owners:
        if any(new in names for names in tables.values()):
            return ()
        raise NotFound(
            f"column of app {declared.app!r}",
            renamed,
            {column for names in tables.values() for column in names},
            hint="in --rename OLD=NEW, OLD is a stored column; --rename TABLE.OLD=NEW is for one table",
        )
    # If several tables have the column, rename it in the tables for which the program declares the new name.
    programs = {name: table for name in owners if (table := declared.stages[name].table) is not None}
    return [name for name, table in programs.items() if new in visible_names(table.columns)] or owners


_OPTION = "--rename-stage OLD=NEW"


def _check_names(heads: Mapping[str, Manifest], declared: Declared, called: Renames) -> None:
    """Check the stage renames in `called`, a map from old to new names. Raises `NotFound` and `Refused`."""
    app = declared.app
    for old, new in called.items():
        if old not in heads:
            raise NotFound(f"stage of app {app!r}", old, heads, hint=f"in {_OPTION}, OLD is a stored stage")
        if new not in declared.stages:
            hint = f"in {_OPTION}, NEW is a stage that the program declares"
            raise NotFound(f"stage in the program of {app!r}", new, declared.stages, hint=hint)
        if heads[old].retired:
            raise retired_error(heads[old])
        if new in heads:
            raise Refused(
                f"{old!r} cannot be renamed to {new!r}: app {app!r} {'had' if heads[new].retired else 'has'} a "
                "stage of that name already, with its own history",
                hint="choose a name that no stage of the app ever had",
            )
        if old in declared.stages:
            raise Refused(
                f"{old!r} cannot be renamed: the program still declares a stage {old!r} of {app!r}",
                hint=f"do not rename it; or give the stage {old!r} in the program another name",
            )
        if list(called.values()).count(new) > 1:
            raise Refused(f"two stages of {app!r} cannot both be renamed to {new!r}")
        # Rows are kept only for readers that have started, so all readers must have started.
        for name, output in heads[old].outputs.items():
            if any(output.sent) and not any(inputs_of_channel(heads, name, old)):
                raise Refused(
                    f"rows that {old!r} wrote to {name!r} wait for a stage that has not started to read them",
                    hint="run the program once before you rename the stage (slackwater run FILE --until-caught-up), "
                    "or retire and migrate it without that channel first",
                )


def inputs_of_channel(heads: Mapping[str, Manifest], channel: str, sender: str) -> Iterator[Input]:
    for head in heads.values():
        for source in (head.inputs.get(channel), head.stopped.get(channel)) if not head.retired else ():
            if source is not None and source.upstream == sender:
                yield source


def _with_new_names(heads: Mapping[str, Manifest], called: Renames) -> dict[str, Manifest]:

    def sources(inputs: Mapping[str, Input]) -> dict[str, Input]:
        return {
            name: with_fields(source, upstream=called.get(source.upstream, source.upstream))
            for name, source in inputs.items()
        }

    return {
        called.get(name, name): with_fields(
            head, stage=called.get(name, name), inputs=sources(head.inputs), stopped=sources(head.stopped)
        )
        for name, head in heads.items()
    }


def _likely_successor(head: Manifest, heads: Mapping[str, Manifest], declared: Declared) -> str:
    """Return the added stage that is probably the new name of a dropped stage; empty unless exactly one stage fits.

    A stage fits if its key, inputs and outputs are those of the dropped stage.
    """
    matches = []
    for name, stage in declared.stages.items():
        if head.table is not None and stage.table is not None:
            alike = head.table.key == stage.table.key
        else:
            alike = head.table is stage.table and head.outputs.keys() == stage.outputs.keys()
        if name not in heads and alike and head.inputs.keys() == stage.inputs.keys():
            matches.append(name)
    return matches[0] if len(matches) == 1 else ""
