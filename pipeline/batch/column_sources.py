"""The fields of a stage's inputs from which the columns of its rows come, read off Spark's plan.

Followed are casts, functions that parse JSON and messages, parts of structs, arrays and maps, `explode`, branches of
`coalesce` and `when`, and unions. Where any other function lies between, the source says which: what it gives equals
the field no more. Of a value as a whole that goes into such a function, as text that is split, or into a function of
Python over rows (`mapInPandas`), nobody knows which part of it leads on: then the source has no field.

The plan comes as JSON, by one call: what it would take to ask node by node is a second for a large one.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame

from ...errors import Usage
from ...snapshot.query.fields import ANY, NAMES, Field
from ...store.versions.column_types import FieldSource
from ..messages.decode import format_of
from ..spark.plans import first_column, plan_of

_SAME = frozenset(
    {
        *("Alias", "Cast", "TryCast", "AnsiCast", "UpCast", "CheckOverflow", "PromotePrecision", "TempResolvedColumn"),
        *("KnownNotNull", "KnownNullable", "KnownFloatingPointNormalized", "AssertNotNull"),
        *("JsonToStructs", "ParseJson", "TryParseJson", "MapFromEntries"),
        # Elements of an array are its own.
        *("GetArrayItem", "Explode", "PosExplode", "ArrayFilter", "Slice", "ArraySort", "SortArray", "ArrayDistinct"),
        *("Flatten", "ArrayCompact", "Shuffle", "ArrayExcept", "ArrayIntersect"),
    }
)
"""Expressions whose first child's values are theirs."""
_TEXT = {
    "Lower": "lower",
    "Upper": "upper",
    "StringTrim": "trim",
    "StringTrimLeft": "ltrim",
    "StringTrimRight": "rtrim",
}
_ALL = frozenset(
    {
        *("Coalesce", "CreateArray", "Nvl", "IfNull", "NullIf", "Greatest", "Least", "ArrayUnion"),
        *("With", "CommonExpressionDef"),
    }
)
"""Expressions whose values are those of any child."""
_COMPUTED = frozenset(_TEXT.values())


@dataclass(frozen=True, slots=True)
class _From:
    """A field on the way."""

    input: str
    path: tuple[str, ...]
    """The column of the input, and what is below; empty where only the program knows."""
    by: tuple[str, ...] = ()
    format: str = ""

    def below(self, step: str) -> "_From":
        """The same, a step further down."""
        return self if self.by or not self.path else replace(self, path=(*self.path, step))

    def through(self, name: str) -> "_From":
        """The same, behind a function. What comes behind one that nobody can compute is of no interest."""
        if not self.path or not _COMPUTED.issuperset(self.by):
            return self
        return replace(self, by=(*self.by, name))


@dataclass(frozen=True, slots=True)
class _Traced:
    sources: tuple[_From, ...] = ()
    type: Any = None
    """As Spark writes it in JSON."""
    parts: "Mapping[str, _Traced]" = field(default_factory=dict)
    """Of a struct that the plan puts together, its fields."""

    def map(self, change: Callable[[_From], _From], kind: Any = None) -> "_Traced":
        """With each source changed, and those of all parts."""
        every = [*self.sources, *(one for part in self.parts.values() for one in part.sources)]
        return _Traced(tuple(dict.fromkeys(map(change, every))), kind)


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    said: dict[str, Any]
    children: "tuple[_Node, ...]"


def sources_of(
    frame: DataFrame, feeds: Mapping[str, DataFrame], topics: Iterable[str]
) -> dict[str, tuple[FieldSource, ...]]:
    """The sources of each column of what a stage's function gives, from `feeds`, its inputs.

    `topics` are those that are users' topics; the others are channels, whose columns are fields.
    """
    ids = {first_column(plan_of(feed)): name for name, feed in feeds.items()}
    return Tracer(_tree(json.loads(plan_of(frame).toJSON())), ids, frozenset(topics)).columns()


def joined(each: Iterable[Mapping[str, tuple[FieldSource, ...]]]) -> dict[str, tuple[FieldSource, ...]]:
    """The sources of columns that come from any of several."""
    found: dict[str, dict[FieldSource, None]] = {}
    for columns in each:
        for name, sources in columns.items():
            found.setdefault(name, {}).update(dict.fromkeys(sources))
    return {name: tuple(sources) for name, sources in found.items()}


@dataclass
class Tracer:
    """Follows the columns of one plan."""

    plan: _Node
    feeds: Mapping[int, str]
    """Inputs by the id of their first column."""
    topics: frozenset[str]
    _known: dict[tuple[int, int], _Traced] = field(default_factory=dict)
    _aliases: dict[int, dict[int, _Node]] = field(default_factory=dict)
    """By node, the expressions that it names, by id."""

    def columns(self) -> dict[str, tuple[FieldSource, ...]]:
        """The sources of each column, by its name."""
        return {name: self.sources(self._column(id_, self.plan)) for id_, name in _output(self.plan)}

    def sources(self, traced: _Traced) -> tuple[FieldSource, ...]:
        """As a manifest keeps them."""
        return tuple(dict.fromkeys(self._source(one) for one in traced.map(lambda each: each).sources))

    def _source(self, one: _From) -> FieldSource:
        is_topic = one.input in self.topics
        if not one.path or (is_topic and one.path == ("value",) and not _COMPUTED.issuperset(one.by)):
            return FieldSource(one.input)
        path = one.path
        if is_topic and path[:2] == ("headers", "value"):
            path = ("headers", ANY, *path[2:])  # which of them, a function has chosen
        return FieldSource(one.input, Field(path[0], path[1:]).text(of_row=not is_topic), one.by, one.format)

    def _column(self, id_: int, plan: _Node) -> _Traced:
        place = (id_, id(plan))
        if place not in self._known:
            self._known[place] = self._found(id_, plan)
        return self._known[place]

    def _found(self, id_: int, plan: _Node) -> _Traced:
        if id(plan) not in self._aliases:
            self._aliases[id(plan)] = {_id(each): each.children[0] for each in _aliases(plan)} if plan.children else {}
        if (made := self._aliases[id(plan)].get(id_)) is not None:
            return self._expression(made, plan.children[0])
        own = plan.said.get("output")
        attributes = [_tree(each) for each in own] if isinstance(own, list) else []
        if not plan.children:
            name = self.feeds.get(_id(attributes[0]), "") if attributes else ""
            mine = next((each for each in attributes if _id(each) == id_), None)
            if not name or mine is None:
                return _Traced()  # a table that does not stream
            return _Traced((_From(name, (mine.said["name"],)),), mine.said.get("dataType"))
        if plan.kind == "Generate":
            given = [_tree(each) for each in plan.said["generatorOutput"]]
            for at, each in enumerate(given):
                if _id(each) == id_:
                    return self._generated(_tree(plan.said["generator"]), at, len(given), plan.children[0])
        if plan.kind == "Union":
            names = [column for column, _ in _output(plan.children[0])]
            if id_ in names:
                at = names.index(id_)
                return _joined([self._column(_output(child)[at][0], child) for child in plan.children])
        if any(_id(each) == id_ for each in attributes) or plan.kind in ("Aggregate", "Window", "Expand"):
            return self._opaque(plan)
        below = [child for child in plan.children if any(id_ == column for column, _ in _output(child))]
        return self._column(id_, below[0]) if below else self._opaque(plan)

    def _opaque(self, plan: _Node) -> _Traced:
        """Anything of the inputs below a node."""
        return _Traced(tuple(_From(name, ()) for name in _feeds(plan, self.feeds)))

    def _generated(self, generator: _Node, at: int, count: int, plan: _Node) -> _Traced:
        children = generator.children
        if generator.kind == "JsonTuple":
            name = str(children[1 + at].said.get("value"))
            return self._expression(children[0], plan).map(lambda one: one.below(name))
        traced = self._expression(children[0], plan) if children else _Traced()
        if generator.kind == "PosExplode":
            if at == 0:
                return _Traced()
            at, count = at - 1, count - 1
        if generator.kind in ("Explode", "PosExplode"):
            if count == 2:  # a map's keys and values
                step = NAMES if at == 0 else ANY
                return traced.map(
                    lambda one: one.below(step), _inner(traced.type, "keyType" if at == 0 else "valueType")
                )
            return _Traced(traced.sources, _inner(traced.type, "elementType"), traced.parts)
        if generator.kind == "Inline":
            return _part(replace(traced, type=_inner(traced.type, "elementType")), at, "")
        everything = _joined([self._expression(each, plan) for each in children])
        return everything.map(lambda one: one.through(_name_of(generator)))

    def _expression(self, node: _Node, plan: _Node) -> _Traced:
        kind, children = node.kind, node.children
        match kind:
            case "AttributeReference":
                traced = self._column(_id(node), plan)
                return replace(traced, type=node.said.get("dataType", traced.type))
            case "Literal":
                return _Traced()
            case "GetStructField" | "GetArrayStructFields":
                inner = self._expression(children[0], plan)
                if kind == "GetArrayStructFields":
                    inner = replace(inner, type=_inner(inner.type, "elementType"))
                    return _part(inner, node.said.get("ordinal", 0), (node.said.get("field") or {}).get("name", ""))
                return _part(inner, node.said.get("ordinal", 0), node.said.get("name") or "")
            case "GetJsonObject" | "VariantGet":
                steps = _steps(children[1]) if children[1].kind == "Literal" else None
                traced = self._expression(children[0], plan)
                if steps is None:
                    return traced.map(lambda one: one.through(_name_of(node)))
                for step in steps:
                    traced = traced.map(lambda one, step=step: one.below(step))  # type: ignore[misc]
                return traced
            case "GetMapValue" | "ElementAt":
                inner = self._expression(children[0], plan)
                if _kind_of(inner.type) != "map":
                    return _Traced(inner.sources, _inner(inner.type, "elementType"), inner.parts)
                name = str(children[1].said.get("value")) if children[1].kind == "Literal" else ANY
                return inner.map(lambda one: one.below(name), _inner(inner.type, "valueType"))
            case "MapKeys" | "MapValues":
                step = NAMES if kind == "MapKeys" else ANY
                return self._expression(children[0], plan).map(lambda one: one.below(step))
            case "CreateNamedStruct":
                names = [str(each.said.get("value")) for each in children[::2]]
                parts = dict(zip(names, (self._expression(each, plan) for each in children[1::2]), strict=True))
                fields = [{"name": name, "type": part.type} for name, part in parts.items()]
                return _Traced((), {"type": "struct", "fields": fields}, parts)
            case "CaseWhen":
                values = [*children[1::2], *(children[-1:] if len(children) % 2 else ())]
                return _joined([self._expression(each, plan) for each in values])
            case "If":
                return _joined([self._expression(each, plan) for each in children[1:]])
        if kind.startswith("Python") or kind.endswith("UDF"):
            if how := format_of(str(node.said.get("name"))):
                inner = self._expression(children[0], plan)
                return _Traced(tuple(replace(one, format=how) for one in inner.sources), node.said.get("dataType"))
            every = _joined([self._expression(each, plan) for each in children])
            return every.map(lambda one: one.through(str(node.said.get("name"))), node.said.get("dataType"))
        if kind in _ALL:
            every = _joined([self._expression(each, plan) for each in children])
            return replace(every, type={"type": "array", "elementType": every.type}) if kind == "CreateArray" else every
        if kind in _SAME:
            inner = self._expression(children[0], plan)
            declared = node.said.get("schema" if kind == "JsonToStructs" else "dataType")
            element = _inner(inner.type, "elementType") if kind == "GetArrayItem" else None
            return _Traced(inner.sources, declared or element or inner.type, inner.parts)
        every = _joined([self._expression(each, plan) for each in children])
        if kind in _TEXT and len(children) == 1:
            return every.map(lambda one: one.through(_TEXT[kind]), "string")
        return every.map(lambda one: one.through(_name_of(node)), node.said.get("dataType"))


def _tree(nodes: Sequence[Mapping[str, Any]]) -> _Node:
    """Nodes that stand one after the other, each before those below it."""
    at = iter(nodes)

    def build() -> _Node:
        said = dict(next(at))
        children = tuple(build() for _ in range(said["num-children"]))
        return _Node(said["class"].rpartition(".")[2], said, children)

    return build()


def _aliases(plan: _Node) -> list[_Node]:
    """The expressions to which a node gives names."""
    lists = (each for each in plan.said.values() if isinstance(each, list))
    found = (one for some in lists for one in some if isinstance(one, list) and one and "class" in one[0])
    return [_tree(one) for one in found if one[0]["class"].endswith(".Alias")]


def _id(node: _Node) -> int:
    return int(node.said["exprId"]["id"])


def _output(plan: _Node) -> list[tuple[int, str]]:
    """The ids and names of the columns that a node gives."""

    def named(lists: Sequence[Any]) -> list[tuple[int, str]]:
        return [(_id(each), each.said["name"]) for each in map(_tree, lists) if "exprId" in each.said]

    for name in ("projectList", "aggregateExpressions", "output"):
        if isinstance(plan.said.get(name), list) and plan.said[name] and isinstance(plan.said[name][0], list):
            return named(plan.said[name])
    if not plan.children:
        return []
    if plan.kind == "Union":
        return _output(plan.children[0])
    found = [column for child in plan.children for column in _output(child)]
    if plan.kind == "Generate":
        found += named(plan.said["generatorOutput"])
    if plan.kind in ("Window", "Expand"):
        found += [(_id(each), each.said["name"]) for each in _aliases(plan)]
    return found


def _feeds(plan: _Node, feeds: Mapping[int, str]) -> list[str]:
    if not plan.children:
        return [feeds[id_] for id_, _ in _output(plan)[:1] if id_ in feeds]
    return [*dict.fromkeys(name for child in plan.children for name in _feeds(child, feeds))]


def _part(traced: _Traced, ordinal: int, name: str) -> _Traced:
    """A field of a struct."""
    fields = traced.type.get("fields", []) if isinstance(traced.type, dict) else []
    known = fields[ordinal] if ordinal < len(fields) else {}
    name = name or known.get("name", "")
    # Spark does not tell capitals from small letters where it names a field; the struct does.
    name = known.get("name", name)
    if name in traced.parts:
        return traced.parts[name]
    return traced.map(lambda one: one.below(name), known.get("type"))


def _joined(each: Sequence[_Traced]) -> _Traced:
    """What may be any of these."""
    names = [name for one in each for name in one.parts]
    parts = {name: _joined([one.parts[name] for one in each if name in one.parts]) for name in dict.fromkeys(names)}
    kind = next((one.type for one in each if one.type is not None), None)
    return _Traced(tuple(dict.fromkeys(source for one in each for source in one.sources)), kind, parts)


def _inner(kind: Any, name: str) -> Any:
    return kind.get(name) if isinstance(kind, dict) else None


def _kind_of(kind: Any) -> str:
    return str(kind.get("type")) if isinstance(kind, dict) else str(kind)


def _steps(literal: _Node) -> tuple[str, ...] | None:
    """Return the names in a JSONPath; None for one that is not followed here."""
    text = str(literal.said.get("value"))
    try:
        return Field.of(text).steps if text.startswith("$") else None
    except Usage:
        return None


def _name_of(node: _Node) -> str:
    """A function's name in SQL's style, by its class."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", node.kind).lower()
    return "window" if name == "precise_timestamp_conversion" else name
