"""Lineage of columns: traces each column of a stage to the input fields that it comes from, in Spark's plan.

The trace follows casts, functions that parse JSON and messages, fields of structs, arrays and maps, `explode`, branches
of `coalesce` and `when`, and unions. If any other function was applied to a field, the source names this function,
because the result differs from the field. If such a function gets a whole value, for example to split a text, the
source has no field, because the used part of the value is unknown. The same holds for a Python function over rows
(`mapInPandas`).

The plan is fetched as JSON by one call. Fetching a large plan node by node would take a second.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from ...errors import Usage
from ...snapshot.query.fields import ANY_PROPERTY, PROPERTY_NAMES, Field
from ...store.versions.column_types import FieldSource
from ..messages.decode import format_of
from ..spark.plans import analysed_plan, first_column_id

_PASS_THROUGH = frozenset(
    {
        *("Alias", "Cast", "TryCast", "AnsiCast", "UpCast", "CheckOverflow", "PromotePrecision", "TempResolvedColumn"),
        *("KnownNotNull", "KnownNullable", "KnownFloatingPointNormalized", "AssertNotNull"),
        *("JsonToStructs", "ParseJson", "TryParseJson", "MapFromEntries"),
        # Functions whose result has elements of the array.
        *("GetArrayItem", "Explode", "PosExplode", "ArrayFilter", "Slice", "ArraySort", "SortArray", "ArrayDistinct"),
        *("Flatten", "ArrayCompact", "Shuffle", "ArrayExcept", "ArrayIntersect"),
    }
)
"""Expressions that return the value, or elements, of their first child."""
_TEXT_FUNCTIONS = {
    "Lower": "lower",
    "Upper": "upper",
    "StringTrim": "trim",
    "StringTrimLeft": "ltrim",
    "StringTrimRight": "rtrim",
}
_ANY_CHILD = frozenset(
    {
        *("Coalesce", "CreateArray", "Nvl", "IfNull", "NullIf", "Greatest", "Least", "ArrayUnion"),
        *("With", "CommonExpressionDef"),
    }
)
"""Expressions whose value may come from any of their children."""
_RECOMPUTABLE = frozenset(_TEXT_FUNCTIONS.values())


@dataclass(frozen=True, slots=True)
class _SourceField:
    """Field of an input from which a column comes. Exists only while the plan is traced."""

    input: str
    path: tuple[str, ...]
    """Column of the input, then names of nested fields; empty if only the user's code knows the field."""
    functions: tuple[str, ...] = ()
    format: str = ""

    def child(self, step: str) -> "_SourceField":
        return self if self.functions or not self.path else replace(self, path=(*self.path, step))

    def with_function(self, name: str) -> "_SourceField":
        if not self.path or not _RECOMPUTABLE.issuperset(self.functions):
            return self
        return replace(self, functions=(*self.functions, name))


@dataclass(frozen=True, slots=True)
class _Trace:
    sources: tuple[_SourceField, ...] = ()
    type: Any = None
    fields: "Mapping[str, _Trace]" = field(default_factory=dict)

    def map_sources(self, change: Callable[[_SourceField], _SourceField], kind: Any = None) -> "_Trace":
        every = [*self.sources, *(source for part in self.fields.values() for source in part.sources)]
        return _Trace(tuple(dict.fromkeys(map(change, every))), kind)

    def child(self, step: str, kind: Any = None) -> "_Trace":
        return self.map_sources(lambda source: source.child(step), kind)

    def with_function(self, name: str, kind: Any = None) -> "_Trace":
        return self.map_sources(lambda source: source.with_function(name), kind)

    def element(self) -> "_Trace":
        return replace(self, type=_inner_type(self.type, "elementType"))


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    fields: dict[str, Any]
    children: "tuple[_Node, ...]"


def trace_sources(
    frame: DataFrame, feeds: Mapping[str, DataFrame], topics: Iterable[str]
) -> dict[str, tuple[FieldSource, ...]]:
    """Return the sources of each column of a DataFrame that a stage's function returned.

    `feeds` are the function's inputs by name. `topics` names the inputs that are users' topics. All other inputs are
    channels, in which each column is a field.
    """
    ids = {first_column_id(analysed_plan(frame)): name for name, frame in feeds.items()}
    return Tracer(_parse_tree(json.loads(analysed_plan(frame).toJSON())), ids, frozenset(topics)).trace_columns()


def merge_lineages(lineages: Iterable[Mapping[str, tuple[FieldSource, ...]]]) -> dict[str, tuple[FieldSource, ...]]:
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
    _traced: dict[tuple[int, int], _Trace] = field(default_factory=dict)
    _aliases: dict[int, dict[int, _Node]] = field(default_factory=dict)

    def trace_columns(self) -> dict[str, tuple[FieldSource, ...]]:
        return {
            name: self.to_field_sources(self._trace_column(id_, self.plan)) for id_, name in _output_columns(self.plan)
        }

    def to_field_sources(self, traced: _Trace) -> tuple[FieldSource, ...]:
        return tuple(
            dict.fromkeys(self._to_field_source(source) for source in traced.map_sources(lambda source: source).sources)
        )

    def _to_field_source(self, source: _SourceField) -> FieldSource:
        is_topic = source.input in self.topics
        if not source.path or (
            is_topic and source.path == ("value",) and not _RECOMPUTABLE.issuperset(source.functions)
        ):
            return FieldSource(source.input)
        path = source.path
        if is_topic and path[:2] == ("headers", "value"):
            path = ("headers", ANY_PROPERTY, *path[2:])  # a function has chosen the header
        return FieldSource(
            source.input, Field(path[0], path[1:]).text(of_row=not is_topic), source.functions, source.format
        )

    def _trace_column(self, id_: int, plan: _Node) -> _Trace:
        place = (id_, id(plan))
        if place not in self._traced:
            self._traced[place] = self._trace_uncached(id_, plan)
        return self._traced[place]

    def _trace_uncached(self, id_: int, plan: _Node) -> _Trace:
        if id(plan) not in self._aliases:
            aliases = _find_aliases(plan) if plan.children else ()
            self._aliases[id(plan)] = {_expression_id(alias): alias.children[0] for alias in aliases}
        if (expression := self._aliases[id(plan)].get(id_)) is not None:
            return self._trace_expression(expression, plan.children[0])
        output = plan.fields.get("output")
        attributes = [_parse_tree(nodes) for nodes in output] if isinstance(output, list) else []
        if not plan.children:
            return self._trace_input_column(id_, attributes)
        if plan.kind == "Generate" and (generated := self._trace_generated_column(id_, plan)) is not None:
            return generated
        if plan.kind == "Union" and (united := self._union(id_, plan)) is not None:
            return united
        if any(_expression_id(attribute) == id_ for attribute in attributes) or plan.kind in (
            "Aggregate",
            "Window",
            "Expand",
        ):
            return self._trace_to_inputs(plan)
        below = [child for child in plan.children if any(id_ == column for column, _ in _output_columns(child))]
        return self._trace_column(id_, below[0]) if below else self._trace_to_inputs(plan)

    def _trace_input_column(self, id_: int, attributes: Sequence[_Node]) -> _Trace:
        """Trace a column of a leaf node of the plan. Returns no sources if the leaf is not a streaming input."""
        name = self.feeds.get(_expression_id(attributes[0]), "") if attributes else ""
        attribute = next((node for node in attributes if _expression_id(node) == id_), None)
        if not name or attribute is None:
            return _Trace()
        return _Trace((_SourceField(name, (attribute.fields["name"],)),), attribute.fields.get("dataType"))

    def _trace_generated_column(self, id_: int, plan: _Node) -> _Trace | None:
        outputs = [_expression_id(_parse_tree(nodes)) for nodes in plan.fields["generatorOutput"]]
        if id_ not in outputs:
            return None
        at, count = outputs.index(id_), len(outputs)
        generator, plan = _parse_tree(plan.fields["generator"]), plan.children[0]
        children = generator.children
        if generator.kind == "JsonTuple":
            return self._trace_expression(children[0], plan).child(str(children[1 + at].fields.get("value")))
        traced = self._trace_expression(children[0], plan) if children else _Trace()
        if generator.kind == "PosExplode":
            if at == 0:
                return _Trace()
            at, count = at - 1, count - 1
        if generator.kind in ("Explode", "PosExplode"):
            if count == 2:  # a map's keys and values
                step, part = (PROPERTY_NAMES, "keyType") if at == 0 else (ANY_PROPERTY, "valueType")
                return traced.child(step, _inner_type(traced.type, part))
            return traced.element()
        if generator.kind == "Inline":
            return _field_trace(traced.element(), at, "")
        return self._trace_all(children, plan).with_function(_sql_name(generator))

    def _union(self, id_: int, plan: _Node) -> _Trace | None:
        columns = [column for column, _ in _output_columns(plan.children[0])]
        if id_ not in columns:
            return None
        at = columns.index(id_)
        return _merge_traces([self._trace_column(_output_columns(child)[at][0], child) for child in plan.children])

    def _trace_to_inputs(self, plan: _Node) -> _Trace:
        """Return a source for each input below a plan node, without a field because the field is unknown."""
        return _Trace(tuple(_SourceField(name, ()) for name in _inputs_below(plan, self.feeds)))

    def _trace_expression(self, node: _Node, plan: _Node) -> _Trace:
        kind = node.kind
        if (trace := _EXPRESSION_RULES.get(kind)) is not None:
            return trace(self, node, plan)
        if kind.startswith("Python") or kind.endswith("UDF"):
            return self._python_function(node, plan)
        if kind in _PASS_THROUGH:
            inner = self._trace_expression(node.children[0], plan)
            declared = node.fields.get("schema" if kind == "JsonToStructs" else "dataType")
            element = _inner_type(inner.type, "elementType") if kind == "GetArrayItem" else None
            return _Trace(inner.sources, declared or element or inner.type, inner.fields)
        every = self._trace_all(node.children, plan)
        if kind in _ANY_CHILD:
            return replace(every, type={"type": "array", "elementType": every.type}) if kind == "CreateArray" else every
        if kind in _TEXT_FUNCTIONS and len(node.children) == 1:
            return every.with_function(_TEXT_FUNCTIONS[kind], "string")
        return every.with_function(_sql_name(node), node.fields.get("dataType"))

    def _trace_all(self, nodes: Iterable[_Node], plan: _Node) -> _Trace:
        return _merge_traces([self._trace_expression(node, plan) for node in nodes])

    def _attribute(self, node: _Node, plan: _Node) -> _Trace:
        traced = self._trace_column(_expression_id(node), plan)
        return replace(traced, type=node.fields.get("dataType", traced.type))

    def _struct_field(self, node: _Node, plan: _Node) -> _Trace:
        inner = self._trace_expression(node.children[0], plan)
        if node.kind == "GetArrayStructFields":
            inner = inner.element()
        name = node.fields.get("name") or (node.fields.get("field") or {}).get("name", "")
        return _field_trace(inner, node.fields.get("ordinal", 0), name)

    def _json_path(self, node: _Node, plan: _Node) -> _Trace:
        value, path = node.children[:2]
        traced, steps = self._trace_expression(value, plan), _json_path_steps(path) if path.kind == "Literal" else None
        if steps is None:
            return traced.with_function(_sql_name(node))
        return reduce(_Trace.child, steps, traced)

    def _element(self, node: _Node, plan: _Node) -> _Trace:
        inner, key = self._trace_expression(node.children[0], plan), node.children[1]
        if _inner_type(inner.type, "type") != "map":
            return inner.element()
        name = str(key.fields.get("value")) if key.kind == "Literal" else ANY_PROPERTY
        return inner.child(name, _inner_type(inner.type, "valueType"))

    def _trace_map_keys_or_values(self, node: _Node, plan: _Node) -> _Trace:
        step = PROPERTY_NAMES if node.kind == "MapKeys" else ANY_PROPERTY
        return self._trace_expression(node.children[0], plan).child(step)

    def _new_struct(self, node: _Node, plan: _Node) -> _Trace:
        names = [str(child.fields.get("value")) for child in node.children[::2]]
        parts = dict(zip(names, (self._trace_expression(child, plan) for child in node.children[1::2]), strict=True))
        fields = [{"name": name, "type": part.type} for name, part in parts.items()]
        return _Trace((), {"type": "struct", "fields": fields}, parts)

    def _case(self, node: _Node, plan: _Node) -> _Trace:
        values = [*node.children[1::2], *(node.children[-1:] if len(node.children) % 2 else ())]
        return self._trace_all(values, plan)

    def _python_function(self, node: _Node, plan: _Node) -> _Trace:
        name, kind = str(node.fields.get("name")), node.fields.get("dataType")
        if how := format_of(name):
            inner = self._trace_expression(node.children[0], plan)
            return _Trace(tuple(replace(source, format=how) for source in inner.sources), kind)
        return self._trace_all(node.children, plan).with_function(name, kind)


_EXPRESSION_RULES: Mapping[str, Callable[[Tracer, _Node, _Node], _Trace]] = {
    "AttributeReference": Tracer._attribute,
    "Literal": lambda _tracer, _node, _plan: _Trace(),
    **dict.fromkeys(("GetStructField", "GetArrayStructFields"), Tracer._struct_field),
    **dict.fromkeys(("GetJsonObject", "VariantGet"), Tracer._json_path),
    **dict.fromkeys(("GetMapValue", "ElementAt"), Tracer._element),
    **dict.fromkeys(("MapKeys", "MapValues"), Tracer._trace_map_keys_or_values),
    "CreateNamedStruct": Tracer._new_struct,
    "CaseWhen": Tracer._case,
    "If": lambda tracer, node, plan: tracer._trace_all(node.children[1:], plan),
}
"""Tracing rules, by Spark's class name, for expressions that treat their children differently."""


def _parse_tree(nodes: Sequence[Mapping[str, Any]]) -> _Node:
    at = iter(nodes)

    def build() -> _Node:
        fields = dict(next(at))
        children = tuple(build() for _ in range(fields["num-children"]))
        return _Node(fields["class"].rpartition(".")[2], fields, children)

    return build()


def _find_aliases(plan: _Node) -> list[_Node]:
    lists = (value for value in plan.fields.values() if isinstance(value, list))
    trees = (tree for values in lists for tree in values if isinstance(tree, list) and tree and "class" in tree[0])
    return [_parse_tree(tree) for tree in trees if tree[0]["class"].endswith(".Alias")]


def _expression_id(node: _Node) -> int:
    return int(node.fields["exprId"]["id"])


def _output_columns(plan: _Node) -> list[tuple[int, str]]:
    def named(lists: Sequence[Any]) -> list[tuple[int, str]]:
        return [
            (_expression_id(node), node.fields["name"]) for node in map(_parse_tree, lists) if "exprId" in node.fields
        ]

    for name in ("projectList", "aggregateExpressions", "output"):
        if isinstance(plan.fields.get(name), list) and plan.fields[name] and isinstance(plan.fields[name][0], list):
            return named(plan.fields[name])
    if not plan.children:
        return []
    if plan.kind == "Union":
        return _output_columns(plan.children[0])
    columns = [column for child in plan.children for column in _output_columns(child)]
    if plan.kind == "Generate":
        columns += named(plan.fields["generatorOutput"])
    if plan.kind in ("Window", "Expand"):
        columns += [(_expression_id(alias), alias.fields["name"]) for alias in _find_aliases(plan)]
    return columns


def _inputs_below(plan: _Node, feeds: Mapping[int, str]) -> list[str]:
    if not plan.children:
        return [feeds[id_] for id_, _ in _output_columns(plan)[:1] if id_ in feeds]
    return [*dict.fromkeys(name for child in plan.children for name in _inputs_below(child, feeds))]


def _field_trace(traced: _Trace, ordinal: int, name: str) -> _Trace:
    fields = traced.type.get("fields", []) if isinstance(traced.type, dict) else []
    declared = fields[ordinal] if ordinal < len(fields) else {}
    name = name or declared.get("name", "")
    # Spark's name of the field may differ in case from the name in the struct.
    name = declared.get("name", name)
    if name in traced.fields:
        return traced.fields[name]
    return traced.child(name, declared.get("type"))


def _merge_traces(alternatives: Sequence[_Trace]) -> _Trace:
    names = [name for traced in alternatives for name in traced.fields]
    parts = {
        name: _merge_traces([traced.fields[name] for traced in alternatives if name in traced.fields])
        for name in dict.fromkeys(names)
    }
    kind = next((traced.type for traced in alternatives if traced.type is not None), None)
    return _Trace(tuple(dict.fromkeys(source for traced in alternatives for source in traced.sources)), kind, parts)


def _inner_type(kind: Any, name: str) -> Any:
    return kind.get(name) if isinstance(kind, dict) else None


def _json_path_steps(literal: _Node) -> tuple[str, ...] | None:
    text = str(literal.fields.get("value"))
    try:
        return Field.parse(text).steps if text.startswith("$") else None
    except Usage:
        return None


def _sql_name(node: _Node) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", node.kind).lower()
    return "window" if name == "precise_timestamp_conversion" else name
