"""The fields that lead to a table's key, in all places where records of an app are stored, out of its lineage.

A stage's manifest says of which fields of its inputs its key and the columns that it sends are made (`FieldSource`).
From a key these are followed up to users' topics, through all channels. A channel that is no part of that way, such as
one of the table's own stage, has columns that come of the same fields of topics: its rows are compared by these.
Where only the program knows, fields that somebody declared count; without these the place is `unclear`.
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
from .values import FUNCTIONS

PLACE = re.compile(keys.TOPIC)
_MOST = 10_000
"""Fields on the way up from a key: what is stored may lead in a circle."""


@dataclass(frozen=True, slots=True)
class DeclaredFields:
    """The fields that somebody named as leading to tables' keys."""

    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By table; `TOPIC:FIELD` for one of that topic or channel alone."""
    format: str = ""
    """As `FieldSource.format`, of messages of a schema registry; empty where nobody said."""

    def check(self, tables: Iterable[str], places: Sequence[str]) -> None:
        """Raise `NotFound` where a place of one of these tables' fields is none of an app, and `Usage` for no field."""
        for text in (each for table in tables for each in self.tables.get(table, ())):
            place, name = _split(text)
            if place and place not in places:
                raise NotFound(
                    "topic", place, places, hint=f"{text!r} is of a topic that the app neither reads nor writes"
                )
            Field.of(name)

    def of(self, table: str, place: str, *, connected: bool) -> Iterator[str]:
        """The fields of a place; those without one count in all places that have to do with the table."""
        for text in self.tables.get(table, ()):
            where, name = _split(text)
            if where == place or (not where and connected):
                yield name


NOTHING_DECLARED = DeclaredFields()


def _split(text: str) -> tuple[str, str]:
    """The topic and the field of a declared one; no topic where it counts in all."""
    place, colon, name = text.partition(":")
    return (place, name) if colon and PLACE.fullmatch(place) else ("", text)


@dataclass(frozen=True, slots=True)
class _Step:
    """A field on the way up from a column."""

    place: str
    """The topic or channel as declared."""
    field: str
    """Empty where only the program knows."""
    by: tuple[str, ...]
    """From there to the column."""
    format: str
    is_topic: bool


@dataclass(frozen=True)
class KeyFields:
    """The fields of one app that lead to the keys of tables: `tables` are these, by stage."""

    heads: Mapping[str, Manifest]
    tables: Mapping[str, str]
    declared: DeclaredFields = NOTHING_DECLARED
    _rules: dict[str, tuple[Rule, ...]] = field(default_factory=dict, init=False)

    @cached_property
    def channels(self) -> dict[str, str]:
        """Channels as declared, and the stage that writes each."""
        return {name: stage for stage, head in self.heads.items() for name in head.outputs}

    @cached_property
    def sinks(self) -> frozenset[str]:
        """The sinks, as declared."""
        return frozenset(name for head in self.heads.values() for name in (*head.sinks, *head.silent))

    @cached_property
    def topics(self) -> dict[str, tuple[str, ...]]:
        """Topics as they are called in Kafka, and the places that they are, as declared: users' topics and channels."""
        found: dict[str, dict[str, None]] = {}
        for head in self.heads.values():
            for name, read in _inputs(head).items():
                found.setdefault(read.topic, {})[name] = None
            for name, sent in head.outputs.items():
                found.setdefault(sent.topic, {})[name] = None
        return {topic: tuple(names) for topic, names in found.items()}

    def places_of(self, topic: str) -> tuple[str, ...]:
        """The places that a topic of Kafka is, as declared; the topic itself where no stage reads it."""
        return self.topics.get(topic, (topic,))

    @property
    def places(self) -> tuple[str, ...]:
        """All channels, users' topics and sinks, as declared."""
        return tuple(dict.fromkeys((*(name for names in self.topics.values() for name in names), *self.sinks)))

    def rules(self, place: str) -> tuple[Rule, ...]:
        """The rules for records of a topic or channel as declared; those that are not unclear."""
        if place not in self._rules:
            self._rules[place] = tuple(rule for rule, _ in self._of(place) if rule is not None)
        return self._rules[place]

    def unclear(self, place: str) -> tuple[str, ...]:
        """The columns of keys that something in a place may lead to, which only the program knows."""
        return tuple(column for _, column in self._of(place) if column)

    def check_clear(self, app: str, places: Iterable[str]) -> None:
        """Raise `Refused` where one of these places, which has records, is unclear."""
        for place in places:
            for column in self.unclear(place):
                table = column.partition(".")[0]
                what = "repartition topic" if place in self.channels else "topic"
                raise Refused(
                    f"which field of {what} {place!r} leads to {column} of {app}, only the program knows: its records "
                    "that are stored cannot be told apart",
                    hint=f"name it: --field {table}=FIELD, such as --field '{table}=$.user.id'; or write [forget] "
                    f'{table} = ["$.user.id"] in slackwater.toml',
                )

    def _of(self, place: str) -> Iterator[tuple[Rule | None, str]]:
        """The rule for each table, and the column that is unclear.

        There is no rule where a column of the key comes from elsewhere.
        """
        for stage, table in self.tables.items():
            head = self.heads[stage]
            if head.table is None or head.attached is not None:
                continue
            upstream = self._upstream(stage)
            topics = {name for name in upstream if name not in self.channels}
            connected = place in upstream or bool(topics & self._topics_of(place))
            named = [*self.declared.of(table, place, connected=connected)]
            columns, unclear, is_here = list[tuple[FieldComparison, ...]](), "", False
            for column in head.table.key:
                way = [*self._way(stage, head.lineage.get("", {}).get(column.name))]
                found, opaque = self._comparisons(way, place, connected=connected)
                if opaque and not named:
                    unclear = f"{table}.{column.name}"
                mine = (*found, *(self._named(place, text) for text in named))
                columns.append(mine)
                # What comes of no field is the same in all records.
                is_here = bool(mine) or (is_here and not way)
                if way and not mine:
                    break
            yield Rule(table, tuple(columns)) if is_here else None, unclear

    def _named(self, place: str, text: str) -> FieldComparison:
        of_row = place in self.channels
        where = Field.of(text, of_row=of_row)
        known = "" if of_row or where.column not in ("key", "value") else self._format(place) or self.declared.format
        return FieldComparison(where, where.text(of_row=of_row), known)

    def _format(self, topic: str) -> str:
        """How a stage decodes a topic's messages."""
        every = (one for head in self.heads.values() for line in head.lineage.values() for one in line.values())
        return next((each.format for some in every for each in some if each.input == topic and each.format), "")

    def _comparisons(self, way: Sequence[_Step], place: str, *, connected: bool) -> tuple[list[FieldComparison], bool]:
        """The fields of a place on the way to a column of a key, and whether others may be."""
        here = [step for step in way if step.place == place]
        of_row, found = place in self.channels, list[FieldComparison]()
        for step in here:
            if step.field:
                where = Field.of(step.field, of_row=of_row)
                unknown = next((each for each in step.by if each not in FUNCTIONS), "")
                by = () if unknown else step.by
                found.append(FieldComparison(where, where.text(of_row=of_row), step.format, by, unknown=unknown))
        opaque = any(not step.field for step in here)
        if of_row and not here and connected:
            beside, opaque = self._beside(place, way)
            found += beside
        return [*dict.fromkeys(found)], opaque

    def _beside(self, channel: str, way: Sequence[_Step]) -> tuple[list[FieldComparison], bool]:
        """The columns of a channel that come of the same fields of topics as a key; and whether any others may."""
        writer, found, opaque = self.channels[channel], list[FieldComparison](), False
        columns: Mapping[str, Sequence[FieldSource] | None] = self.heads[writer].lineage.get(channel) or {"": None}
        for column, sources in columns.items():
            for step in self._way(writer, sources):
                opaque = opaque or (not step.field and step.is_topic)
                for root in way if step.field and step.is_topic else ():
                    if (root.place, root.field) == (step.place, step.field):
                        found.append(_compared(column, root.by, step.by))
        # A field that leads to the key tells the rows; what the others are made of does not matter then.
        return found, opaque and not found

    def _way(self, stage: str, sources: Sequence[FieldSource] | None) -> list[_Step]:
        """All fields from which a stage's column comes, those of its own inputs first."""
        found: dict[_Step, None] = {}
        waiting: list[tuple[str, Sequence[FieldSource] | None, tuple[str, ...]]] = [(stage, sources, ())]
        for at, own, by in waiting:
            inputs = _inputs(self.heads[at])
            for source in own if own is not None else map(FieldSource, inputs):
                if (read := inputs.get(source.input)) is None:
                    continue
                step = _Step(source.input, source.field, (*source.by, *by), source.format, not read.upstream)
                if step in found:
                    continue
                if len(found) > _MOST:
                    key = keys.manifest(self.heads[at].app, at, self.heads[at].version)
                    raise Corruption(f"the lineage in {key} has more fields than there can be", object_key=key)
                found[step] = None
                if read.upstream in self.heads:
                    waiting.append((read.upstream, self._above(read.upstream, source), step.by))
        return [*found]

    def _above(self, writer: str, source: FieldSource) -> Sequence[FieldSource] | None:
        """The sources of a field of a channel; None where anything may be."""
        if not source.field:
            return None
        where = Field.of(source.field, of_row=True)
        found = self.heads[writer].lineage.get(source.input, {}).get(where.column)
        return found if found is None or not where.steps else [_below(each, where.steps) for each in found]

    def _upstream(self, stage: str) -> set[str]:
        """All topics and channels that a stage's rows come through."""
        found, waiting = set[str](), [stage]
        for at in waiting:
            for name, read in _inputs(self.heads[at]).items():
                if name not in found and read.upstream in self.heads:
                    waiting.append(read.upstream)
                found.add(name)
        return found

    def _topics_of(self, channel: str) -> set[str]:
        """The users' topics from which a channel's rows come."""
        if channel not in self.channels:
            return set()
        return {name for name in self._upstream(self.channels[channel]) if name not in self.channels}


def _inputs(head: Manifest) -> Mapping[str, Input]:
    """The inputs of a stage, those that it has stopped reading among them."""
    return {**head.stopped, **head.inputs}


def _compared(column: str, to_key: tuple[str, ...], to_column: tuple[str, ...]) -> FieldComparison:
    """A column of rows that comes of the same field as a key, each by its functions."""
    where, same = Field(column), min(len(to_key), len(to_column))
    differ = to_column[-1:] if to_key[:same] != to_column[:same] else ()
    key, rest = to_key[same:], to_column[same:]
    unknown = next((each for each in (*differ, *key, *rest) if differ or each not in FUNCTIONS), "")
    if unknown:
        key = rest = ()
    return FieldComparison(where, where.text(of_row=True), "", key, rest, unknown)


def _below(source: FieldSource, steps: Sequence[str]) -> FieldSource:
    """The source of a field further down; only the program knows it where functions lie between."""
    if not source.field or source.by:
        return FieldSource(source.input)
    place = Field.of(source.field)
    return FieldSource(source.input, place.below(steps).text(), (), source.format)
