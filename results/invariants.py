"""What `watch` says: how many invariants hold at a moment, the rows of one that does not, and what broke it."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import instants
from ..search.verdict import Verdict
from ..search.watcher import CheckResult, Findings, Invariant, State
from . import formats, values
from .document import Block, Title


def line(look: Findings) -> str:
    """One line for a look: when, where, and how many invariants are what."""
    by_state = Counter(result.state for result in look.results)
    words: dict[State, tuple[str, str]] = {
        "holds": ("holds", "hold"),
        "fails": ("fails", "fail"),
        "unknown": ("cannot be asked", "cannot be asked"),
    }
    states = ", ".join(f"{n} {words[state][n > 1]}" for state in words if (n := by_state[state]))
    again = [each.invariant.name for each in look.news if each.state == "holds"]
    parts = (
        instants.iso(look.cut.time_ms),
        look.ref,
        states,
        f"{', '.join(again)} again" if again else "",
        f"last good: {look.last_good}" if look.last_good and not look.is_good else "",
    )
    return "  ".join(filter(None, parts))


def failing(rows: pa.Table, invariant: Invariant, look: Findings) -> Iterator[Block]:
    """The first rows of an invariant that does not hold."""
    yield Title(f"{invariant.name} does not hold at {look.ref}")
    yield values.grid(rows, formats.MOST_SHOWN)
    if rows.num_rows > formats.MOST_SHOWN:
        yield f"and more; slackwater query {look.ref} {shlex.quote(invariant.where)} shows them"


def found(verdict: Verdict, invariant: Invariant, flags: str) -> Iterator[Block]:
    """The commit that broke it; `flags` are what commands to type next need besides."""
    yield f"{verdict.stage} v{verdict.bad_version} broke {invariant.name}; before it: {verdict.good_ref or '-'}"
    if verdict.lineage.sources:
        yield f"it read {formats.windows(map(str, verdict.lineage.sources))}"
    good = f" --good {verdict.good_ref}" if verdict.good_ref else ""
    where = shlex.quote(invariant.where)
    yield f"slackwater bisect {verdict.app}{good} --bad {verdict.bad_ref} --where {where}{flags} tells more"


def data(look: Findings, verdicts: Mapping[str, Verdict | None], reports: Mapping[str, Path | None]) -> dict[str, Any]:
    """A look for machines, with what was found of each invariant that began to fail, by its name."""
    return {
        "app": look.cut.app,
        "ref": look.ref,
        "time_ms": look.cut.time_ms,
        "versions": look.cut.versions,
        "last_good": look.last_good or None,
        "invariants": [
            _result(each, verdicts.get(each.invariant.name), reports.get(each.invariant.name)) for each in look.results
        ],
    }


def _result(result: CheckResult, verdict: Verdict | None, report: Path | None) -> dict[str, Any]:
    return {
        "name": result.invariant.name,
        "state": result.state,
        "rows": values.for_json(result.rows)["rows"] if result.rows is not None else None,
        "error": result.error.message if result.error is not None else None,
        "first_bad": verdict.bad_ref if verdict is not None else None,
        "last_good": verdict.good_ref or None if verdict is not None else None,
        "source_windows": verdict.lineage.sources if verdict is not None else None,
        "report": str(report) if report is not None else None,
    }
