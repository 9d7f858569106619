"""What bisect found: the commit, its keys, what it read, and the record behind it; and which invariants hold."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...common import instants
from ...snapshot.bisect.causes import CLASSES, NOTE, Behind, Cause
from ...snapshot.bisect.session import KeptSearch
from ...snapshot.bisect.verdict import MAX_ROWS, Address, Evaluation, Guilty, Verdict
from ...snapshot.bisect.watcher import Findings, Invariant, State
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.lineage import Lineage, Window
from ...snapshot.diff.key_changes import KeyChanges
from ...snapshot.query.log import batches_brought
from ...store.versions.manifest import Program
from . import formats
from .document import Block, Cell, Name, NextCommand, Span, TableBlock, Time, Title
from .formats import MOST_SHOWN, plural
from .shown import Result, fields
from .values import changes, for_json, grid, readable, stream, word

_STATES: dict[State, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "unknown": ("cannot be asked", "cannot be asked"),
}
"""What one invariant does, and several do."""
_MAX_TEXT = 2_000
"""Characters of a record's value that are printed for people."""


def verdict(
    found: Verdict,
    behind: Behind | None,
    out: Path | None,
    edge: str,
    clone: str,
    *,
    every: bool = False,
) -> Result:
    """The answer of a search, and what is behind it, None where nobody asked; `out` is a file with all keys.

    `edge` is which change was asked for, `first` or `last`, empty for any; `clone` a name for a clone that no app has.
    With `every`, all bad records of the batch are shown, and `out` has those.
    """

    def steps(of: Iterable[Evaluation]) -> list[dict[str, Any]]:
        return [{"cut": step.cut.versions} | fields(step, "ref", "bad", "answer", "why", "took_ms") for step in of]

    def moment(which: str, cut: Cut) -> dict[str, Any]:
        about = {name: getattr(found, f"{which}_{name}") for name in ("ref", "version", "time_ms")}
        return about | {"cut": cut.versions}

    keys = found.keys
    data = {
        **fields(found, "app", "where", "stage", "more_rows", "candidates", "evaluations"),
        "predicate": found.predicate.text,
        "last_good": moment("good", found.good),
        "first_bad": moment("bad", found.bad),
        "windows": found.lineage.direct,
        "records_read": found.lineage.records,
        "source_windows": found.lineage.sources,
        "lost_windows": found.lineage.lost,
        "keys": _sides(keys),
        "keys_named": bool(keys and keys.named),
        "file": out if (keys if not every else behind and records_table(behind)) is not None else None,
        "rows": for_json(found.rows)["rows"],
        "steps": steps(found.steps),
        "non_monotone": steps(found.non_monotone),
        "bad_before": found.bad_before or None,
        "assumes_once": not found.looked and not found.bad_before,
        "flips": found.flips,
        "thinned_out": {ref: cut.thinned for ref, cut in found.resolved.items() if cut.thinned is not None},
        "begins": found.begins or None,
        "cause": cause_data(behind.cause) if behind is not None else None,
        "record": record_data(behind.guilty if behind is not None else None),
    }
    if every and behind is not None and (bad := records_table(behind)) is not None:
        data["bad_records"] = records_data(bad)
    return Result(data, *blocks(found, out, behind, clone, every=every), notes=notes(found, edge))


def sentence(found: Verdict) -> str:
    """Which commit it is, and what of that is assumed."""
    if found.candidates:
        return f"the first bad commit of {found.app} is one of {', '.join(map(str, found.candidates))}"
    batches = batches_brought(found.bad.stages[found.stage]) if found.stage in found.bad.stages else ""
    commit = f"{found.stage} v{found.bad_version}{f' ({batches})' if batches else ''}"
    return f"{commit} is {which(found)}"


def which(found: Verdict) -> str:
    """What a commit is that is certain: the first bad one, or one of several."""
    if found.bad_before:
        return f"one of the commits at which {found.app} went bad: it was bad before, at {found.bad_before}"
    assumed = "" if found.looked else ", assuming that it went from good to bad once"
    return f"the first bad commit of {found.app}{assumed}"


def blocks(
    found: Verdict,
    out: Path | None = None,
    behind: Behind | None = None,
    clone: str = "",
    *,
    every: bool = False,
) -> Iterator[Block]:
    """For people: the first keys, and what to type next; `clone` is empty where no clone is offered."""
    keys_file = None if every else out
    yield Title(sentence(found))
    if found.candidates:
        skipped = "there are only moments left that cannot be judged; `slackwater bisect explain` says why"
        yield "the versions in between were thinned out by gc" if found.thinned else skipped
    good = ("-", "before the first commit", "")
    if found.good_ref:
        good = (found.good_ref, instants.when(found.good_time_ms), found.good.ref)
    first_bad = ("first bad", found.bad_ref, instants.when(found.bad_time_ms), found.bad.ref)
    yield TableBlock.of(("", "", "committed", "the whole app"), (("last good", *good), first_bad))
    yield ""
    if behind is None or behind.cause.kind != "operation":
        yield from read(found.lineage)
    if keys := found.keys:
        yield ""
        if not keys.named:
            yield "the query names no key of this table; keys that this commit changed:"
        # A key that the query names may have turned bad by another row of a join: those stand in --json and --out.
        shown = keys.changed() or keys
        yield changes(shown)
        if (more := len(shown) - formats.MOST_SHOWN) > 0:
            where = "--json and --out FILE give all" if keys_file is None else f"all are in {keys_file}"
            yield f"and {more:,} more; {where}"
        elif keys_file is not None:
            yield f"{plural(len(keys), 'key')} in {keys_file}"
    if behind is not None:
        yield from _behind(behind, every=every)
    yield ""
    if not found.where and found.rows.column(0)[0].as_py():
        yield f"at {found.bad_ref}: {found.rows.column(0)[0]}"
    made = sum(not step.given for step in found.steps)
    effort = plural(found.evaluations, "evaluation") if made else plural(len(found.steps), "answer")
    others = f", {made:,} with those that looked for other changes" if made > found.evaluations else ""
    yield f"found with {effort}{others}; to go on:"
    query = shlex.quote(found.where or f"FROM {found.stage}")
    for ref in filter(None, (found.good_ref, found.bad_ref)):
        yield "  ", NextCommand(f"slackwater query {ref} {query}")
    if found.good_ref and clone:
        yield "  ", NextCommand(f"slackwater clone {found.good_ref} {clone}")


def notes(found: Verdict, edge: str = "") -> Iterator[str]:
    """What is worth knowing beside it; `edge` is which change was asked for."""
    if found.more_rows:
        more = f"the query returns more than {MAX_ROWS:,} rows at {found.bad_ref}"
        yield f"note: {more}; keys that only later rows name are not reported"
    if found.flips is not None and len(found.flips.flips) > 1:
        turns = [f"{flip.ref} {'bad' if flip.bad else 'good'}" for flip in found.flips.flips[:MOST_SHOWN]]
        more = f", and {plural(len(found.flips.flips) - MOST_SHOWN, 'more change')}"
        turns += [more] * (len(found.flips.flips) > MOST_SHOWN)
        yield f"it turned more than once: {', '.join(turns)}; --first or --last says which change is meant"
    elif found.non_monotone:
        against = ", ".join(f"{step.ref or 'its beginning'} is {step.answer}" for step in found.non_monotone)
        which_one = f"the {edge} that was met" if edge else "one of the changes"
        narrow = f"narrow it with --good and --bad{'' if edge else ', or say --first or --last'}"
        yield f"it went from good to bad more than once ({against}), and this is {which_one}: {narrow}"


def _sides(keys: KeyChanges | None) -> Any:
    return stream({"key": key.key, "before": key.before, "after": key.after} for key in keys or ())


def read(lineage: Lineage) -> Iterator[Block]:
    """What a commit read, what that came from, and what it passed over."""
    reads_sources = lineage.direct == lineage.sources
    if lineage.direct:
        counted = "" if lineage.records is None else f" {plural(lineage.records, 'record')}, at"
        yield windows(f"it read{counted}", ">offsets", lineage.direct)
    else:
        yield "it read no record"
    if not reads_sources:
        yield ""
        if lineage.sources:
            yield windows("which came from", ">offsets", lineage.sources)
        else:
            yield "no record is behind these: rows fell due, windows ended, or rejected records were retried"
    if lineage.lost:
        yield ""
        yield windows("gone from Kafka and never read", ">offsets", lineage.lost)


def windows(heading: str, unit: str, found: Iterable[Window]) -> TableBlock:
    """Windows of offsets, and how many each spans."""
    return TableBlock.of((heading, unit), ((Name(str(window)), window.end - window.start) for window in found))


def _behind(behind: Behind, *, every: bool) -> Iterator[Block]:
    """The cause and what shows it; nothing where nothing was replayed, which a note says."""
    if behind.cause.kind != "unknown":
        yield ""
        yield Title(behind.cause.sentence)
        yield from cause_facts(behind.cause)
    if behind.guilty is not None:
        yield from _record(behind.guilty)
        yield from bad_records(behind, every=every)
    if (note := behind.cause.evidence.get(NOTE)) is not None:
        yield ""
        yield f"note: {note}"


def _record(guilty: Guilty) -> Iterator[Block]:
    """The record, the way to it, and what it did; or why there is none."""
    message, hops = guilty.message, guilty.hops
    if message is not None:
        yield ""
        key = [("key", message.key)] if message.key is not None else []
        parts = (*key, *((f"header {name}", data) for name, data in message.headers), ("value", message.value))
        rows = [("record", str(message.address)), ("sent", instants.when(message.time_ms))]
        for name, data in parts:
            rows.append((name, word(None) if data is None else readable(data, _MAX_TEXT, f"… ({len(data):,} bytes)")))
        yield TableBlock.of(("", ""), rows)
    if hops:
        yield ""
        way = ((hop.stage, f"v{hop.version}", str(hop.record), hop.records, hop.replays) for hop in hops)
        yield TableBlock.of(("stage", "version", "turned bad with", ">of", ">replays"), way)
        if not hops[0].alone:
            more = plural(hops[0].needs, "record") if hops[0].needs else "records"
            yield f"by itself it does not make it bad: it does so with {more} before it"
    if guilty.tied:
        others = ", ".join(map(str, guilty.tied[:MOST_SHOWN]))
        yield f"of the same time, in other partitions, and as likely the first: {others}"
    if guilty.keys:
        yield ""
        yield "what it did:"
        yield changes(guilty.keys)
    if guilty.reason:
        yield ""
        yield guilty.reason if message is not None else f"the record behind it cannot be told: {guilty.reason}"


def cause_data(cause: Cause) -> dict[str, Any]:
    """The cause for machines."""
    return {
        "class": cause.kind,
        "proved": cause.proved,
        "sentence": cause.sentence,
        "record": str(cause.record) if cause.record is not None else None,
        "one_of": cause.one_of,
        "records": [*map(str, cause.records)],
        "evidence": dict(cause.evidence),
    }


def cause_facts(cause: Cause) -> Iterator[Block]:
    """The evidence of causes that are no record's; nothing of others, whose record is shown."""
    rows = [(heading, value) for heading, value in evidence_of(cause) if value]
    if rows and cause.kind not in ("record", "records", "unknown"):
        yield TableBlock.of(("", ""), rows)


def evidence_of(cause: Cause) -> Iterator[tuple[str, Cell]]:
    """What shows a cause, with headings, as far as its sentence does not say it; keys as text."""
    evidence = cause.evidence
    for name, value in evidence.items():
        heading = name.replace("_", " ")
        # How a deploy was shown, and which file to add, the sentence has in words.
        if name in (NOTE, "reason", "num_keys", "how", "add") or value is None or _is_said(cause, name, value):
            continue
        if name == "keys":
            yield ("keys", some_keys(value, int(evidence.get("num_keys", len(value)))))
        elif name == "since":
            yield (heading, f"{value['stage']}@v{value['version']}, {value['time']}")
        elif name == "read_to":
            yield ("read up to", formats.windows(f"{place} ..{end}" for place, end in value.items()))
        elif isinstance(value, Mapping):
            yield (heading, str(Program(value["path"], value["checksum"])))
        else:
            yield (heading, str(value))


def _is_said(cause: Cause, name: str, value: object) -> bool:
    """Whether the sentence of a cause has a value of its evidence."""
    if name in ("stage", "version"):
        value = f"{cause.evidence.get('stage')}@v{cause.evidence.get('version')}"
    elif isinstance(value, Mapping) and "checksum" in value:
        value = str(Program(value["path"], value["checksum"]))
    return isinstance(value, str) and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", cause.sentence) is not None


def some_keys(values: list[dict[str, object]], count: int) -> str:
    """The first keys, and how many more there are."""
    shown = [", ".join(f"{name} = {value}" for name, value in key.items()) for key in values[:3]]
    more = [f"{count - len(shown):,} more"] if count > len(shown) else []
    return "; ".join([*shown, *more])


def bad_records(behind: Behind, *, every: bool = False) -> Iterator[Block]:
    """The bad records of the batch in the app's order, where there are several."""
    found = behind.guilty.records if behind.guilty is not None else None
    if found is None or behind.cause.kind not in ("record", "records", "watermark") or found.num_rows < 2:
        return
    shown = found if every else found.slice(0, MOST_SHOWN)
    yield ""
    rows = (
        (Name(str(address)), when, "yes" if alone else "with those before") for address, when, alone in _each(shown)
    )
    yield TableBlock.of(("bad records", "sent", "by itself"), rows)
    if (more := found.num_rows - shown.num_rows) > 0:
        yield f"and {plural(more, 'more')}: --all lists them, and --all --out FILE writes them"
    if behind.guilty is not None and not behind.guilty.is_complete:
        yield "there may be more: not all records of the batch were tried by themselves"


def _each(found: pa.Table) -> Iterator[tuple[Address, Span, bool]]:
    for row in found.select(["topic", "partition", "offset", "row", "time", "alone"]).to_pylist():
        at = Address(row["topic"], row["partition"], row["offset"], row["row"])
        yield at, Time(int(row["time"].timestamp() * 1000), "milliseconds"), row["alone"]


def records_table(behind: Behind) -> pa.Table | None:
    """The bad records of the batch; None where they are not known."""
    return behind.guilty.records if behind.guilty is not None else None


def for_file(verdict: Verdict, behind: Behind, *, every: bool) -> tuple[pa.Table | None, str]:
    """What `--out` writes: the keys that turned bad, or with `every` the bad records; else None, and why."""
    if every:
        return records_table(behind), "which records are bad is not known"
    if verdict.keys is not None:
        return verdict.keys.flat(), ""
    return None, "no key is certain" if verdict.candidates else f"{verdict.stage} keeps no table, so no key turned bad"


def records_data(found: pa.Table) -> list[dict[str, object]]:
    """The bad records for machines: address, time, Kafka key as hexadecimal, and whether it is bad by itself."""
    return [
        {
            "record": str(Address(row["topic"], row["partition"], row["offset"], row["row"])),
            "time_ms": int(row["time"].timestamp() * 1000),
            "key": row["key"].hex() if row["key"] is not None else None,
            "alone": row["alone"],
        }
        for row in found.to_pylist()
    ]


def noun_of(cause: Cause) -> str:
    """What a cause of the class is called."""
    return CLASSES[cause.kind].noun


def record_data(guilty: Guilty | None) -> dict[str, Any] | None:
    """The record for machines, None for none; bytes are hexadecimal."""
    if guilty is None:
        return None
    message, where = guilty.message, guilty.message.address if guilty.message else None

    def hexadecimal(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    return {
        "address": str(where) if where else None,
        **{name: getattr(where, name, None) for name in ("topic", "partition", "offset")},
        "time_ms": message.time_ms if message else None,
        "key": hexadecimal(message.key) if message else None,
        "value": hexadecimal(message.value) if message else None,
        "headers": [{"name": name, "value": hexadecimal(value)} for name, value in message.headers] if message else [],
        "hops": [asdict(hop) | {"record": str(hop.record)} for hop in guilty.hops],
        "keys": _sides(guilty.keys),
        **fields(guilty, "windows", "others", "of_key", "proved"),
        "reason": guilty.reason or None,
    }


def explained(search: KeptSearch) -> Result:
    """Each moment that was looked at, and what it was found to be."""
    rows = []
    for number, mark in enumerate(search.marks, 1):
        how = ("-", "said by hand") if mark.by_hand else (formats.duration(mark.took_ms), mark.why)
        rows.append((str(number), mark.ref or "before the first commit", mark.answer, *how))
    last = f"{search.wanted or 'the beginning'} is to be looked at" if search.wanted is not None else search.found
    return Result(search, TableBlock.of((">", "moment", "was", ">took", "why"), rows), *filter(None, [last]))


def wanted(search: KeptSearch, cut: Cut, left: int) -> Result:
    """What a person is to look at next, with about `left` more after it."""
    app, ref = search.asked.app, search.wanted or ""
    stage = ref.partition("/")[2].partition("@")[0]
    table = stage if stage in cut.tables else next(iter(cut.tables), "")
    return Result(
        {"app": app, "wanted": ref, "cut": cut.versions, "left": left},
        f"look at {ref or 'the beginning'}, {instants.when(cut.time_ms)}; about {left} more after it:",
        *([("  ", NextCommand(f"slackwater query {ref} 'FROM {table}'"))] if ref and table else []),
        ("and say what it is: ", NextCommand(f"slackwater bisect good {app}"), " (or bad, or skip)"),
    )


def invariants_line(look: Findings) -> str:
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


def failing(rows: pa.Table, invariant: Invariant, look: Findings) -> Iterator[Block]:
    """The first rows of an invariant that does not hold."""
    yield Title(f"{invariant.name} does not hold at {look.ref}")
    yield grid(rows, MOST_SHOWN)
    if rows.num_rows > MOST_SHOWN:
        yield f"and more; slackwater query {look.ref} {shlex.quote(invariant.where)} shows them"


def broken(verdict: Verdict, cause: Cause, invariant: Invariant) -> Iterator[Block]:
    """The commit that broke it, and what is behind that as far as the store tells."""
    yield f"{verdict.stage} v{verdict.bad_version} broke {invariant.name}; before it: {verdict.good_ref or '-'}"
    if cause.kind != "unknown":
        yield cause.sentence
    if verdict.lineage.sources:
        yield f"it read {formats.windows(map(str, verdict.lineage.sources))}"
    good = f" --good {verdict.good_ref}" if verdict.good_ref else ""
    where = shlex.quote(invariant.where)
    search = NextCommand(f"slackwater bisect {verdict.app}{good} --bad {verdict.bad_ref} --where {where}")
    yield search, " tells more"


def invariants_data(
    look: Findings, verdicts: Mapping[str, Verdict | None], reports: Mapping[str, Path | None]
) -> dict[str, Any]:
    """A look for machines, with what was found of each invariant that began to fail, by its name."""
    cut, invariants = look.cut, []
    for each in look.results:
        verdict, report = verdicts.get(each.invariant.name), reports.get(each.invariant.name)
        invariants.append(
            {
                "name": each.invariant.name,
                "state": each.state,
                "rows": for_json(each.rows)["rows"] if each.rows is not None else None,
                "error": each.error.message if each.error is not None else None,
                "first_bad": verdict.bad_ref if verdict is not None else None,
                "last_good": verdict.good_ref or None if verdict is not None else None,
                "source_windows": verdict.lineage.sources if verdict is not None else None,
                "report": report,
            }
        )
    about = {"app": cut.app, "ref": look.ref, **fields(cut, "time_ms", "versions"), "last_good": look.last_good or None}
    return about | {"invariants": invariants}
