"""Search, in the app's lineage, for the fields of stored records from which a table's key is made.

A stage's manifest lists the fields of its inputs from which its key and its sent columns are made (`FieldSource`).
These fields are followed upstream from the key to users' topics, through all channels on the path. A channel outside
this path, such as an output of the table's stage, may also have columns that come from the same fields of users'
topics. Rows of such a channel are searched by these columns. If only the program knows the fields, the user declares
them; otherwise the key column is one of `unclear_columns`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import Corruption, NotFound, Refused
from ...snapshot.query.fields import Field
from ...store.versions import keys
from ...store.versions.column_types import FieldSource
from ...store.versions.manifest import Input, Manifest
from .matching import FieldComparison, Rule
from .values import FUNCTIONS, WINDOW

KNOWN_FUNCTIONS = {*FUNCTIONS, WINDOW}
_IN_TOPIC = re.compile(rf"({keys.TOPIC}):(.*)", re.DOTALL)
_MAX_FIELDS = 10_000
"""Maximum number of fields from which a key column is made; a damaged lineage could be circular."""


@dataclass(frozen=True, slots=True)
class DeclaredFields:
    """Fields from which keys of tables are made, as declared by the user."""

    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Declared fields by table. A field is `FIELD`, or `TOPIC:FIELD` for one topic or channel only."""
    format: str = ""
    """Format of schema registry messages, a value of `FieldSource.format`; empty if not declared."""

    def check(self, tables: Iterable[str], inputs: Sequence[str]) -> None:
        """Raise `NotFound` if a field's topic or channel is not in `inputs`, and `Usage` for a malformed field."""
        for text in (declared for table in tables for declared in self.tables.get(table, ())):
            place, name = _split(text)
            if place and place not in inputs:
                raise NotFound(
                    "topic", place, inputs, hint=f"{text!r} is of a topic that the app neither reads nor writes"
                )
            Field.parse(name)

    def for_stream(self, table: str, place: str, *, connected: bool) -> Iterator[str]:
        """Yield the fields of the topic or channel `place` that were declared for a table.

        Fields that were declared without a topic are included only if `connected` is set.
        """
        for text in self.tables.get(table, ()):
            where, name = _split(text)
            if where == place or (not where and connected):
                yield name


NOTHING_DECLARED = DeclaredFields()


def _split(text: str) -> tuple[str, str]:
    match = _IN_TOPIC.fullmatch(text)
    return (match[1], match[2]) if match is not None else ("", text)


@dataclass(frozen=True, slots=True)
class _UpstreamField:
    """Field of a topic or channel from which a key column is made."""

    stream: str
    """Name of the topic or channel in the program."""
    field: str
    functions: tuple[str, ...]
    format: str
    is_topic: bool


@dataclass(frozen=True)
class KeyFields:
    """Fields of an app's records from which keys are made. `tables` has the names of the tables by stage."""

    heads: Mapping[str, Manifest]
    tables: Mapping[str, str]
    declared: DeclaredFields = NOTHING_DECLARED
    _rules: dict[str, tuple[Rule, ...]] = field(default_factory=dict, init=False)

    @cached_property
    def channels(self) -> dict[str, str]:
        return {name: stage for stage, head in self.heads.items() for name in head.outputs}

    @cached_property
    def sinks(self) -> frozenset[str]:
        return frozenset(name for head in self.heads.values() for name in (*head.sinks, *head.silent))

    @cached_property
    def topics(self) -> dict[str, tuple[str, ...]]:
        names_by_topic: dict[str, dict[str, None]] = {}
        for head in self.heads.values():
            for name, read in _inputs(head).items():
                names_by_topic.setdefault(read.topic, {})[name] = None
            for name, sent in head.outputs.items():
                names_by_topic.setdefault(sent.topic, {})[name] = None
        return {topic: tuple(names) for topic, names in names_by_topic.items()}

    def declared_names_of(self, topic: str) -> tuple[str, ...]:
        """Return the names that the program gives to a Kafka topic; the topic's own name if the program gives none."""
        return self.topics.get(topic, (topic,))

    @property
    def declared_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*(name for names in self.topics.values() for name in names), *self.sinks)))

    def rules_for(self, place: str) -> tuple[Rule, ...]:
        """Return the rules for records of a topic or channel. A key with unknown fields has no rule."""
        if place not in self._rules:
            self._rules[place] = tuple(rule for rule, _ in self._rules_and_unclear(place) if rule is not None)
        return self._rules[place]

    def unclear_columns(self, place: str) -> tuple[str, ...]:
        """Return the key columns that may be made from unknown fields of a topic or channel."""
        return tuple(column for _, column in self._rules_and_unclear(place) if column)

    def check_fields_known(self, app: str, inputs: Iterable[str]) -> None:
        """Raise `Refused` if a key may be made from unknown fields of these topics and channels."""
        for place in inputs:
            for column in self.unclear_columns(place):
                table = column.partition(".")[0]
                kind = "repartition topic" if place in self.channels else "topic"
                raise Refused(
                    f"only the program knows which field of {kind} {place!r} becomes {column} of {app}: its stored "
                    "records cannot be searched for the key",
                    hint=f"name it: --field {table}=FIELD, such as --field '{table}=$.user.id'; or write [forget] "
                    f'{table} = ["$.user.id"] in slackwater.toml',
                )

    def _rules_and_unclear(self, place: str) -> Iterator[tuple[Rule | None, str]]:
        for stage, table in self.tables.items():
            head = self.heads[stage]
            if head.table is None or head.attached is not None:
                continue
            upstream = self._upstream_streams(stage)
            topics = {name for name in upstream if name not in self.channels}
            connected = place in upstream or bool(topics & self._topics_of(place))
            named = [*self.declared.for_stream(table, place, connected=connected)]
            columns, unclear, is_here = list[tuple[FieldComparison, ...]](), "", False
            for column in head.table.key:
                way = [*self._fields_upstream(stage, head.lineage.get("", {}).get(column.name))]
                comparisons, opaque = self._comparisons(way, place, connected=connected)
                if opaque and not named:
                    unclear = f"{table}.{column.name}"
                fields_of_column = (*comparisons, *(self._declared_comparison(place, text) for text in named))
                columns.append(fields_of_column)
                # A column that is made from no field has the same value in all records.
                is_here = bool(fields_of_column) or (is_here and not way)
                if way and not fields_of_column:
                    break
            yield Rule(table, tuple(columns)) if is_here else None, unclear

    def _declared_comparison(self, place: str, text: str) -> FieldComparison:
        of_row = place in self.channels
        where = Field.parse(text, of_row=of_row)
        known_format = (
            "" if of_row or where.column not in ("key", "value") else self._format(place) or self.declared.format
        )
        return FieldComparison(where, where.text(of_row=of_row), known_format)

    def _format(self, topic: str) -> str:
        every = (sources for head in self.heads.values() for line in head.lineage.values() for sources in line.values())
        return next(
            (source.format for sources in every for source in sources if source.input == topic and source.format), ""
        )

    def _comparisons(
        self, way: Sequence[_UpstreamField], place: str, *, connected: bool
    ) -> tuple[list[FieldComparison], bool]:
        steps_here = [step for step in way if step.stream == place]
        of_row, comparisons = place in self.channels, list[FieldComparison]()
        for step in steps_here:
            if step.field:
                where = Field.parse(step.field, of_row=of_row)
                unknown = next((function for function in step.functions if function not in KNOWN_FUNCTIONS), "")
                by = () if unknown else step.functions
                comparisons.append(
                    FieldComparison(where, where.text(of_row=of_row), step.format, by, unknown_function=unknown)
                )
        opaque = any(not step.field for step in steps_here)
        if of_row and not steps_here and connected:
            sibling_columns, opaque = self._sibling_columns(place, way)
            comparisons += sibling_columns
        return [*dict.fromkeys(comparisons)], opaque

    def _sibling_columns(self, channel: str, way: Sequence[_UpstreamField]) -> tuple[list[FieldComparison], bool]:
        writer, comparisons, opaque = self.channels[channel], list[FieldComparison](), False
        columns: Mapping[str, Sequence[FieldSource] | None] = self.heads[writer].lineage.get(channel) or {"": None}
        for column, sources in columns.items():
            for step in self._fields_upstream(writer, sources):
                opaque = opaque or (not step.field and step.is_topic)
                for root in way if step.field and step.is_topic else ():
                    if (root.stream, root.field) == (step.stream, step.field):
                        comparisons.append(_sibling_comparison(column, root.functions, step.functions))
        # If one field leads to the key, it identifies the rows, regardless of the other fields.
        return comparisons, opaque and not comparisons

    def _fields_upstream(self, stage: str, sources: Sequence[FieldSource] | None) -> list[_UpstreamField]:
        steps: dict[_UpstreamField, None] = {}
        waiting: list[tuple[str, Sequence[FieldSource] | None, tuple[str, ...]]] = [(stage, sources, ())]
        for at, own, by in waiting:
            inputs = _inputs(self.heads[at])
            for source in own if own is not None else map(FieldSource, inputs):
                if (read := inputs.get(source.input)) is None:
                    continue
                step = _UpstreamField(source.input, source.field, (*source.by, *by), source.format, not read.upstream)
                if step in steps:
                    continue
                if len(steps) > _MAX_FIELDS:
                    key = keys.manifest(self.heads[at].app, at, self.heads[at].version)
                    raise Corruption(f"the lineage in {key} has too many fields: it is damaged", object_key=key)
                steps[step] = None
                if read.upstream in self.heads:
                    waiting.append((read.upstream, self._sources_of(read.upstream, source), step.functions))
        return [*steps]

    def _sources_of(self, writer: str, source: FieldSource) -> Sequence[FieldSource] | None:
        if not source.field:
            return None
        where = Field.parse(source.field, of_row=True)
        sources = self.heads[writer].lineage.get(source.input, {}).get(where.column)
        return (
            sources
            if sources is None or not where.steps
            else [_nested_source(origin, where.steps) for origin in sources]
        )

    def _upstream_streams(self, stage: str) -> set[str]:
        names, waiting = set[str](), [stage]
        for at in waiting:
            for name, read in _inputs(self.heads[at]).items():
                if name not in names and read.upstream in self.heads:
                    waiting.append(read.upstream)
                names.add(name)
        return names

    def _topics_of(self, channel: str) -> set[str]:
        if channel not in self.channels:
            return set()
        return {name for name in self._upstream_streams(self.channels[channel]) if name not in self.channels}


def _inputs(head: Manifest) -> Mapping[str, Input]:
    return {**head.stopped, **head.inputs}


def _sibling_comparison(column: str, to_key: tuple[str, ...], to_column: tuple[str, ...]) -> FieldComparison:
    where, same = Field(column), min(len(to_key), len(to_column))
    differ = to_column[-1:] if to_key[:same] != to_column[:same] else ()
    key, remaining = to_key[same:], to_column[same:]
    unknown = next(
        (function for function in (*differ, *key, *remaining) if differ or function not in KNOWN_FUNCTIONS), ""
    )
    if unknown:
        key = remaining = ()
    return FieldComparison(where, where.text(of_row=True), "", key, remaining, unknown)


def _nested_source(source: FieldSource, steps: Sequence[str]) -> FieldSource:
    if not source.field or source.by:
        return FieldSource(source.input)
    place = Field.parse(source.field)
    return FieldSource(source.input, place.child(steps).text(), (), source.format)
