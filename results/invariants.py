"""What `watch` says: how many invariants hold at a moment, the rows of one that does not, and what broke it."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import instants
from ..search.verdict import Verdict
from ..search.watcher import Invariant, Look, State
from . import formats, values
from .document import Block, Title
from .shown import fields

_STATES: dict[State, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "unknown": ("cannot be asked", "cannot be asked"),
}
"""What one invariant does, and several do."""


def line(look: Look) -> str:
    """One line for a look: when, where, and how many invariants are what."""
    by_state = Counter(result.state for result in look.results)
    states = ", ".join(f"{n} {words[n > 1]}" for state, words in _STATES.items() if (n := by_state[state]))
    again = [each.invariant.name for each in look.news if each.state == "holds"]
    parts = (
        instants.iso(look.cut.time_ms),
        look.ref,
        states,
        f"{', '.join(again)} again" if again else "",
        f"last good: {look.last_good}" if look.last_good and not look.is_good else "",
    )
    return "  ".join(filter(None, parts))


def failing(rows: pa.Table, invariant: Invariant, look: Look) -> Iterator[Block]:
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


def data(look: Look, verdicts: Mapping[str, Verdict | None], reports: Mapping[str, Path | None]) -> dict[str, Any]:
    """A look for machines, with what was found of each invariant that began to fail, by its name."""
    cut, invariants = look.cut, []
    for each in look.results:
        verdict, report = verdicts.get(each.invariant.name), reports.get(each.invariant.name)
        invariants.append(
            {
                "name": each.invariant.name,
                "state": each.state,
                "rows": values.for_json(each.rows)["rows"] if each.rows is not None else None,
                "error": each.error.message if each.error is not None else None,
                "first_bad": verdict.bad_ref if verdict is not None else None,
                "last_good": verdict.good_ref or None if verdict is not None else None,
                "source_windows": verdict.lineage.sources if verdict is not None else None,
                "report": str(report) if report is not None else None,
            }
        )
    about = {"app": cut.app, "ref": look.ref, **fields(cut, "time_ms", "versions"), "last_good": look.last_good or None}
    return about | {"invariants": invariants}
