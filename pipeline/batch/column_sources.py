"""Lineage of columns: traces each column of a stage to the input fields that it comes from, in Spark's plan.

The trace follows casts, functions that parse JSON and messages, fields of structs, arrays and maps, `explode`,
branches of `coalesce` and `when`, and unions. Any other function is named in the source, because its result no longer
equals the field. A value that goes as a whole into such a function (text that is split) or into a Python function over
rows (`mapInPandas`) has a source without a field: nobody can tell which part of the value the result comes from.

The plan is fetched as JSON by one call. Asking the JVM node by node would take a second for a large plan.
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
        # Functions whose result has elements of the array.
        *("GetArrayItem", "Explode", "PosExplode", "ArrayFilter", "Slice", "ArraySort", "SortArray", "ArrayDistinct"),
        *("Flatten", "ArrayCompact", "Shuffle", "ArrayExcept", "ArrayIntersect"),
    }
)
"""Expressions that return the value of their first child, or elements of it."""
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
"""Expressions whose value may come from any of their children."""
_COMPUTED = frozenset(_TEXT.values())


@dataclass(frozen=True, slots=True)
class _From:
    """Field of an input that a column comes from, while the plan is traced."""

    input: str
    path: tuple[str, ...]
    """Column of the input, then names of nested fields; empty if only the user's code knows the field."""
    by: tuple[str, ...] = ()
    format: str = ""

    def below(self, step: str) -> "_From":
        return self if self.by or not self.path else replace(self, path=(*self.path, step))

    def through(self, name: str) -> "_From":
        if not self.path or not _COMPUTED.issuperset(self.by):
            return self
        return replace(self, by=(*self.by, name))


@dataclass(frozen=True, slots=True)
class _Traced:
    sources: tuple[_From, ...] = ()
    type: Any = None
    parts: "Mapping[str, _Traced]" = field(default_factory=dict)
    """Traces of the fields of a struct that the plan builds."""

    def map(self, change: Callable[[_From], _From], kind: Any = None) -> "_Traced":
        every = [*self.sources, *(source for part in self.parts.values() for source in part.sources)]
        return _Traced(tuple(dict.fromkeys(map(change, every))), kind)


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    fields: dict[str, Any]
    children: "tuple[_Node, ...]"


def sources_of(
    frame: DataFrame, feeds: Mapping[str, DataFrame], topics: Iterable[str]
) -> dict[str, tuple[FieldSource, ...]]:
    """Return the sources of each column of a DataFrame that a stage's function returned.

    `feeds` are the function's inputs by name. `topics` names the inputs that are users' topics; the others are
    channels, whose columns are fields.
    """
    ids = {first_column(plan_of(frame)): name for name, frame in feeds.items()}
    return Tracer(_tree(json.loads(plan_of(frame).toJSON())), ids, frozenset(topics)).columns()


def joined(lineages: Iterable[Mapping[str, tuple[FieldSource, ...]]]) -> dict[str, tuple[FieldSource, ...]]:
    merged: dict[str, dict[FieldSource, None]] = {}
    for columns in lineages:
        for name, sources in columns.items():
            merged.setdefault(name, {}).update(dict.fromkeys(sources))
    return {name: tuple(sources) for name, sources in merged.items()}


@dataclass
class Tracer:
    """Traces the columns of one plan to their sources."""

    plan: _Node
    feeds: Mapping[int, str]
    topics: frozenset[str]
    _traced: dict[tuple[int, int], _Traced] = field(default_factory=dict)
    _aliases: dict[int, dict[int, _Node]] = field(default_factory=dict)
    """Expressions named by a plan node, by expression id. The outer key is the node's `id()`."""

    def columns(self) -> dict[str, tuple[FieldSource, ...]]:
        return {name: self.sources(self._column(id_, self.plan)) for id_, name in _output(self.plan)}

    def sources(self, traced: _Traced) -> tuple[FieldSource, ...]:
        return tuple(dict.fromkeys(self._source(source) for source in traced.map(lambda source: source).sources))

    def _source(self, source: _From) -> FieldSource:
        is_topic = source.input in self.topics
        if not source.path or (is_topic and source.path == ("value",) and not _COMPUTED.issuperset(source.by)):
            return FieldSource(source.input)
        path = source.path
        if is_topic and path[:2] == ("headers", "value"):
            path = ("headers", ANY, *path[2:])  # a function has chosen the header
        return FieldSource(source.input, Field(path[0], path[1:]).text(of_row=not is_topic), source.by, source.format)

    def _column(self, id_: int, plan: _Node) -> _Traced:
        place = (id_, id(plan))
        if place not in self._traced:
            self._traced[place] = self._trace(id_, plan)
        return self._traced[place]

    def _trace(self, id_: int, plan: _Node) -> _Traced:
        if id(plan) not in self._aliases:
            aliases = _aliases(plan) if plan.children else ()
            self._aliases[id(plan)] = {_id(alias): alias.children[0] for alias in aliases}
        if (expression := self._aliases[id(plan)].get(id_)) is not None:
            return self._expression(expression, plan.children[0])
        output = plan.fields.get("output")
        attributes = [_tree(nodes) for nodes in output] if isinstance(output, list) else []
        if not plan.children:
            return self._read(id_, attributes)
        if plan.kind == "Generate" and (generated := self._generate(id_, plan)) is not None:
            return generated
        if plan.kind == "Union" and (united := self._union(id_, plan)) is not None:
            return united
        if any(_id(attribute) == id_ for attribute in attributes) or plan.kind in ("Aggregate", "Window", "Expand"):
            return self._opaque(plan)
        below = [child for child in plan.children if any(id_ == column for column, _ in _output(child))]
        return self._column(id_, below[0]) if below else self._opaque(plan)

    def _read(self, id_: int, attributes: Sequence[_Node]) -> _Traced:
        """Trace a column of a leaf of the plan. A leaf that is no streaming input gives no sources."""
        name = self.feeds.get(_id(attributes[0]), "") if attributes else ""
        attribute = next((node for node in attributes if _id(node) == id_), None)
        if not name or attribute is None:
            return _Traced()
        return _Traced((_From(name, (attribute.fields["name"],)),), attribute.fields.get("dataType"))

    def _generate(self, id_: int, plan: _Node) -> _Traced | None:
        outputs = [_id(_tree(nodes)) for nodes in plan.fields["generatorOutput"]]
        if id_ not in outputs:
            return None
        return self._generated(_tree(plan.fields["generator"]), outputs.index(id_), len(outputs), plan.children[0])

    def _union(self, id_: int, plan: _Node) -> _Traced | None:
        columns = [column for column, _ in _output(plan.children[0])]
        if id_ not in columns:
            return None
        at = columns.index(id_)
        return _joined([self._column(_output(child)[at][0], child) for child in plan.children])

    def _opaque(self, plan: _Node) -> _Traced:
        """Return one source without a field for each input below a node, because the field is unknown."""
        return _Traced(tuple(_From(name, ()) for name in _feeds(plan, self.feeds)))

    def _generated(self, generator: _Node, at: int, count: int, plan: _Node) -> _Traced:
        children = generator.children
        if generator.kind == "JsonTuple":
            name = str(children[1 + at].fields.get("value"))
            return self._expression(children[0], plan).map(lambda source: source.below(name))
        traced = self._expression(children[0], plan) if children else _Traced()
        if generator.kind == "PosExplode":
            if at == 0:
                return _Traced()
            at, count = at - 1, count - 1
        if generator.kind in ("Explode", "PosExplode"):
            if count == 2:  # a map's keys and values
                step = NAMES if at == 0 else ANY
                return traced.map(
                    lambda source: source.below(step), _inner(traced.type, "keyType" if at == 0 else "valueType")
                )
            return _Traced(traced.sources, _inner(traced.type, "elementType"), traced.parts)
        if generator.kind == "Inline":
            return _part(replace(traced, type=_inner(traced.type, "elementType")), at, "")
        everything = self._any_of(children, plan)
        return everything.map(lambda source: source.through(_name_of(generator)))

    def _expression(self, node: _Node, plan: _Node) -> _Traced:
        kind = node.kind
        if (trace := _TRACES.get(kind)) is not None:
            return trace(self, node, plan)
        if kind.startswith("Python") or kind.endswith("UDF"):
            return self._python_function(node, plan)
        if kind in _SAME:
            inner = self._expression(node.children[0], plan)
            declared = node.fields.get("schema" if kind == "JsonToStructs" else "dataType")
            element = _inner(inner.type, "elementType") if kind == "GetArrayItem" else None
            return _Traced(inner.sources, declared or element or inner.type, inner.parts)
        every = self._any_of(node.children, plan)
        if kind in _ALL:
            return replace(every, type={"type": "array", "elementType": every.type}) if kind == "CreateArray" else every
        if kind in _TEXT and len(node.children) == 1:
            return every.map(lambda source: source.through(_TEXT[kind]), "string")
        return every.map(lambda source: source.through(_name_of(node)), node.fields.get("dataType"))

    def _any_of(self, nodes: Iterable[_Node], plan: _Node) -> _Traced:
        return _joined([self._expression(node, plan) for node in nodes])

    def _attribute(self, node: _Node, plan: _Node) -> _Traced:
        traced = self._column(_id(node), plan)
        return replace(traced, type=node.fields.get("dataType", traced.type))

    def _struct_field(self, node: _Node, plan: _Node) -> _Traced:
        inner = self._expression(node.children[0], plan)
        return _part(inner, node.fields.get("ordinal", 0), node.fields.get("name") or "")

    def _field_of_structs(self, node: _Node, plan: _Node) -> _Traced:
        inner = self._expression(node.children[0], plan)
        inner = replace(inner, type=_inner(inner.type, "elementType"))
        return _part(inner, node.fields.get("ordinal", 0), (node.fields.get("field") or {}).get("name", ""))

    def _json_path(self, node: _Node, plan: _Node) -> _Traced:
        value, path = node.children[:2]
        traced, steps = self._expression(value, plan), _steps(path) if path.kind == "Literal" else None
        if steps is None:
            return traced.map(lambda source: source.through(_name_of(node)))
        for step in steps:
            traced = traced.map(lambda source, step=step: source.below(step))  # type: ignore[misc]
        return traced

    def _element(self, node: _Node, plan: _Node) -> _Traced:
        inner, key = self._expression(node.children[0], plan), node.children[1]
        if _inner(inner.type, "type") != "map":
            return _Traced(inner.sources, _inner(inner.type, "elementType"), inner.parts)
        name = str(key.fields.get("value")) if key.kind == "Literal" else ANY
        return inner.map(lambda source: source.below(name), _inner(inner.type, "valueType"))

    def _map_part(self, node: _Node, plan: _Node) -> _Traced:
        step = NAMES if node.kind == "MapKeys" else ANY
        return self._expression(node.children[0], plan).map(lambda source: source.below(step))

    def _new_struct(self, node: _Node, plan: _Node) -> _Traced:
        names = [str(child.fields.get("value")) for child in node.children[::2]]
        parts = dict(zip(names, (self._expression(child, plan) for child in node.children[1::2]), strict=True))
        fields = [{"name": name, "type": part.type} for name, part in parts.items()]
        return _Traced((), {"type": "struct", "fields": fields}, parts)

    def _case(self, node: _Node, plan: _Node) -> _Traced:
        values = [*node.children[1::2], *(node.children[-1:] if len(node.children) % 2 else ())]
        return self._any_of(values, plan)

    def _python_function(self, node: _Node, plan: _Node) -> _Traced:
        name, kind = str(node.fields.get("name")), node.fields.get("dataType")
        if how := format_of(name):
            inner = self._expression(node.children[0], plan)
            return _Traced(tuple(replace(source, format=how) for source in inner.sources), kind)
        return self._any_of(node.children, plan).map(lambda source: source.through(name), kind)


_TRACES: Mapping[str, Callable[[Tracer, _Node, _Node], _Traced]] = {
    "AttributeReference": Tracer._attribute,
    "Literal": lambda _tracer, _node, _plan: _Traced(),
    "GetStructField": Tracer._struct_field,
    "GetArrayStructFields": Tracer._field_of_structs,
    **dict.fromkeys(("GetJsonObject", "VariantGet"), Tracer._json_path),
    **dict.fromkeys(("GetMapValue", "ElementAt"), Tracer._element),
    **dict.fromkeys(("MapKeys", "MapValues"), Tracer._map_part),
    "CreateNamedStruct": Tracer._new_struct,
    "CaseWhen": Tracer._case,
    "If": lambda tracer, node, plan: tracer._any_of(node.children[1:], plan),
}
"""Tracing rules, by Spark's class name, for expressions that do not treat all children alike."""


def _tree(nodes: Sequence[Mapping[str, Any]]) -> _Node:
    at = iter(nodes)

    def build() -> _Node:
        fields = dict(next(at))
        children = tuple(build() for _ in range(fields["num-children"]))
        return _Node(fields["class"].rpartition(".")[2], fields, children)

    return build()


def _aliases(plan: _Node) -> list[_Node]:
    lists = (value for value in plan.fields.values() if isinstance(value, list))
    trees = (tree for values in lists for tree in values if isinstance(tree, list) and tree and "class" in tree[0])
    return [_tree(tree) for tree in trees if tree[0]["class"].endswith(".Alias")]


def _id(node: _Node) -> int:
    return int(node.fields["exprId"]["id"])


def _output(plan: _Node) -> list[tuple[int, str]]:
    def named(lists: Sequence[Any]) -> list[tuple[int, str]]:
        return [(_id(node), node.fields["name"]) for node in map(_tree, lists) if "exprId" in node.fields]

    for name in ("projectList", "aggregateExpressions", "output"):
        if isinstance(plan.fields.get(name), list) and plan.fields[name] and isinstance(plan.fields[name][0], list):
            return named(plan.fields[name])
    if not plan.children:
        return []
    if plan.kind == "Union":
        return _output(plan.children[0])
    columns = [column for child in plan.children for column in _output(child)]
    if plan.kind == "Generate":
        columns += named(plan.fields["generatorOutput"])
    if plan.kind in ("Window", "Expand"):
        columns += [(_id(alias), alias.fields["name"]) for alias in _aliases(plan)]
    return columns


def _feeds(plan: _Node, feeds: Mapping[int, str]) -> list[str]:
    if not plan.children:
        return [feeds[id_] for id_, _ in _output(plan)[:1] if id_ in feeds]
    return [*dict.fromkeys(name for child in plan.children for name in _feeds(child, feeds))]


def _part(traced: _Traced, ordinal: int, name: str) -> _Traced:
    fields = traced.type.get("fields", []) if isinstance(traced.type, dict) else []
    declared = fields[ordinal] if ordinal < len(fields) else {}
    name = name or declared.get("name", "")
    # Spark's name of the field may differ in case; the struct has the real one.
    name = declared.get("name", name)
    if name in traced.parts:
        return traced.parts[name]
    return traced.map(lambda source: source.below(name), declared.get("type"))


def _joined(alternatives: Sequence[_Traced]) -> _Traced:
    names = [name for traced in alternatives for name in traced.parts]
    parts = {
        name: _joined([traced.parts[name] for traced in alternatives if name in traced.parts])
        for name in dict.fromkeys(names)
    }
    kind = next((traced.type for traced in alternatives if traced.type is not None), None)
    return _Traced(tuple(dict.fromkeys(source for traced in alternatives for source in traced.sources)), kind, parts)


def _inner(kind: Any, name: str) -> Any:
    return kind.get(name) if isinstance(kind, dict) else None


def _steps(literal: _Node) -> tuple[str, ...] | None:
    text = str(literal.fields.get("value"))
    try:
        return Field.of(text).steps if text.startswith("$") else None
    except Usage:
        return None


def _name_of(node: _Node) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", node.kind).lower()
    return "window" if name == "precise_timestamp_conversion" else name
