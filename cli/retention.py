"""`[retention]` in slackwater.toml: what of an app's history `slackwater gc` keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Usage
from .humane import nearest

if TYPE_CHECKING:
    from ..snapshot.gc.retention import Retention

__all__ = ["check", "retention_of"]

_SPANS = ("all", "hourly", "daily")
_RULES = (*_SPANS, "versions")


def check(path: Path, table: object) -> None:
    """See that the file's `[retention]` can be understood; an app's rules stand in a table of its name.

    Raises:
        Usage: it cannot.
    """
    if not isinstance(table, dict):
        raise Usage(f"{path}: retention must be a table", hint="write [retention] above the rules")
    _check_rules(path, "retention", {rule: value for rule, value in table.items() if not isinstance(value, dict)})
    for app, rules in table.items():
        if isinstance(rules, dict):
            _check_rules(path, f"retention.{app}", rules)


def retention_of(table: Mapping[str, Any], app: str, said: Mapping[str, str | int | None]) -> "Retention":
    """The rules for an app: those of its own table if there is one, else the common ones; `said` before both.

    Raises:
        Usage: a span of time is not one.
    """
    from ..durations import parse_ms
    from ..snapshot.gc.retention import Retention

    own = table.get(app)
    rules = dict(own if isinstance(own, dict) else table) | {rule: is_ for rule, is_ in said.items() if is_ is not None}
    spans = {
        f"{rule}_ms": parse_ms(f"retention.{rule}", rules[rule]) for rule in _SPANS if isinstance(rules.get(rule), str)
    }
    versions = rules.get("versions")
    return Retention(versions=versions if isinstance(versions, int) else None, **spans)


def _check_rules(path: Path, where: str, rules: Mapping[str, Any]) -> None:
    from ..durations import parse_ms

    for rule, value in rules.items():
        if rule not in _RULES:
            raise Usage(
                f"{path} sets {where}.{rule}, which is not a rule of retention{nearest(rule, _RULES)}",
                hint=f"the rules are {', '.join(_RULES)}",
            )
        if rule == "versions":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise Usage(f"{path}: {where}.versions must be a whole number of at least 1, not {value!r}")
            continue
        parse_ms(f"{path}: {where}.{rule}", value)
