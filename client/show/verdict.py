"""Output of a bisect (the bad commit, its keys, its input, the record that caused it) and of invariants."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...common import instants
from ...pipeline.publish.tables.lookup import TableSnapshot
from ...snapshot.bisect.causes import CLASSES, NOTE, Cause, TracedCause
from ...snapshot.bisect.invariant import Invariant
from ...snapshot.bisect.session import SearchSession
from ...snapshot.bisect.verdict import MAX_ROWS, Evaluation, RecordLocation, RecordPath, Verdict
from ...snapshot.bisect.watcher import Findings, InvariantState
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.lineage import Lineage, Window
from ...snapshot.diff.key_changes import KeyChanges
from ...snapshot.query.log import describe_imported_batches
from ...store.versions.manifest import Program
from . import formats
from .document import Block, Cell, Name, NextCommand, TableBlock, Time, Title
from .formats import MAX_SHOWN, plural
from .shown import Result, attributes
from .values import encode_array, format_bytes, format_value, grid, key_changes_table, table_data

_STATES: dict[InvariantState, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "unknown": ("cannot be evaluated", "cannot be evaluated"),
}
_MAX_TEXT = 2_000


def verdict_result(
    outcome: Verdict,
    explanation: TracedCause | None,
    out: Path | None,
    edge: str,
    clone: str,
    *,
    every: bool = False,
    tables: Sequence[TableSnapshot] = (),
) -> Result:
    """Return the result of a bisect. `explanation` is the cause, or None if the cause was not searched for.

    `tables` has the tables to which the bad version was published.

    `out` is the file with all keys. With `every`, the file has all bad records of the batch instead of the keys, and
    the result shows these records as well. `edge` is the requested change: `first`, `last`, or empty for any. `clone`
    is an unused name for a clone.
    """

    def steps(of: Iterable[Evaluation]) -> list[dict[str, Any]]:
        return [{"cut": step.cut.versions} | attributes(step, "ref", "bad", "answer", "why", "took_ms") for step in of]

    def moment(side: str, cut: Cut) -> dict[str, Any]:
        about = {name: getattr(outcome, f"{side}_{name}") for name in ("ref", "version", "time_ms")}
        return about | {"cut": cut.versions}

    keys = outcome.keys
    data = {
        **attributes(outcome, "app", "where", "stage", "more_rows", "candidates", "evaluations"),
        "predicate": outcome.predicate.text,
        "last_good": moment("good", outcome.good),
        "first_bad": moment("bad", outcome.bad),
        "windows": outcome.lineage.direct,
        "records_read": outcome.lineage.records,
        "source_windows": outcome.lineage.sources,
        "lost_windows": outcome.lineage.lost,
        "keys": _sides(keys),
        "keys_named": bool(keys and keys.from_predicate),
        "file": out if (keys if not every else explanation and records_table(explanation)) is not None else None,
        "rows": table_data(outcome.rows)["rows"],
        "steps": steps(outcome.steps),
        "non_monotone": steps(outcome.non_monotone),
        "bad_before": outcome.earlier_bad_ref or None,
        "assumes_once": not outcome.is_first_known and not outcome.earlier_bad_ref,
        "flips": outcome.flips,
        "thinned_out": {ref: cut.thinned for ref, cut in outcome.resolved.items() if cut.thinned is not None},
        "begins": outcome.gapless_start_ref or None,
        "cause": cause_data(explanation.cause) if explanation is not None else None,
        "record": record_data(explanation.named_record_path if explanation is not None else None),
        "tables": [attributes(table, "sink", "table", "version", "snapshot") for table in tables],
    }
    if every and explanation is not None and (bad := records_table(explanation)) is not None:
        data["bad_records"] = records_data(bad)
    notes = (*verdict_notes(outcome, edge), *map(_table_note, tables))
    return Result(data, *verdict_blocks(outcome, out, explanation, clone, every=every), notes=notes)


def _table_note(table: TableSnapshot) -> str:
    place = f"the sink {table.sink!r} publishes v{table.version} to {table.table}"
    return f"{place}: {f'snapshot {table.snapshot}' if table.snapshot else 'no snapshot of it can be read'}"


def verdict_sentence(outcome: Verdict) -> str:
    """Return the verdict in one sentence, with its assumptions."""
    if outcome.candidates:
        return f"the first bad commit of {outcome.app} is one of {', '.join(map(str, outcome.candidates))}"
    batches = (
        describe_imported_batches(outcome.bad.stages[outcome.stage]) if outcome.stage in outcome.bad.stages else ""
    )
    commit = f"{outcome.stage} v{outcome.bad_version}{f' ({batches})' if batches else ''}"
    return f"{commit} is {describe_commit(outcome)}"


def describe_commit(outcome: Verdict) -> str:
    """Describe the commit that was found: the first bad commit, or one of several candidates."""
    if outcome.earlier_bad_ref:
        return f"one of the commits at which {outcome.app} went bad: it was bad before, at {outcome.earlier_bad_ref}"
    assumed = "" if outcome.is_first_known else ", assuming that it went from good to bad once"
    return f"the first bad commit of {outcome.app}{assumed}"


def verdict_blocks(
    outcome: Verdict,
    out: Path | None = None,
    explanation: TracedCause | None = None,
    clone: str = "",
    *,
    every: bool = False,
) -> Iterator[Block]:
    """Yield the blocks of a verdict: the first keys, the cause, and commands to type next.

    An empty `clone` omits the command that clones.
    """
    keys_file = None if every else out
    yield from _bounds(outcome)
    yield ""
    if explanation is None or explanation.cause.kind != "operation":
        yield from lineage_blocks(outcome.lineage)
    if outcome.keys:
        yield from _keys(outcome.keys, keys_file)
    if explanation is not None:
        yield from _cause_blocks(explanation, every=every)
    yield from _next_steps(outcome, explanation, clone)


def _bounds(outcome: Verdict) -> Iterator[Block]:
    yield Title(verdict_sentence(outcome))
    if outcome.candidates:
        skipped = "only skipped moments are left; `slackwater bisect explain` shows why they were skipped"
        yield "gc has removed the versions between the last good and the first bad one" if outcome.thinned else skipped
    good = ("-", "before the first commit", "")
    if outcome.good_ref:
        good = (outcome.good_ref, instants.format_with_age(outcome.good_time_ms), outcome.good.ref)
    first_bad = ("first bad", outcome.bad_ref, instants.format_with_age(outcome.bad_time_ms), outcome.bad.ref)
    yield TableBlock.from_rows(("", "", "committed", "moment (all stages)"), (("last good", *good), first_bad))


def _keys(keys: KeyChanges, file: Path | None) -> Iterator[Block]:
    yield ""
    if not keys.from_predicate:
        yield "the query returns no key of this table; keys that this commit changed:"
    # The query may return keys that turned bad because of another row of a join. --json and --out have such keys.
    shown = keys.changed() or keys
    yield key_changes_table(shown)
    if (more := len(shown) - formats.MAX_SHOWN) > 0:
        where = "--json and --out FILE give all" if file is None else f"all are in {file}"
        yield f"and {more:,} more; {where}"
    elif file is not None:
        yield f"{plural(len(keys), 'key')} in {file}"


def _next_steps(outcome: Verdict, explanation: TracedCause | None, clone: str) -> Iterator[Block]:
    yield ""
    if not outcome.where and outcome.rows.column(0)[0].as_py():
        yield f"at {outcome.bad_ref}: {outcome.rows.column(0)[0]}"
    num_evaluated = sum(not step.is_given for step in outcome.steps)
    effort = plural(outcome.evaluations, "evaluation") if num_evaluated else plural(len(outcome.steps), "answer")
    extra = (
        f", plus {num_evaluated - outcome.evaluations:,} to check for other changes"
        if num_evaluated > outcome.evaluations
        else ""
    )
    if (note := in_flight_note(outcome, explanation)) and clone:
        yield note
    yield f"{effort}{extra}. Next steps:"
    query = formats.quote_word(outcome.where or f"FROM {outcome.stage}")
    for ref in filter(None, (outcome.good_ref, outcome.bad_ref)):
        yield "  ", NextCommand(f"slackwater query {ref} {query}")
    if clone and (ref := ref_to_clone(outcome, explanation)):
        yield "  ", NextCommand(f"slackwater clone {ref} {clone}")


def ref_to_clone(outcome: Verdict, explanation: TracedCause | None) -> str:
    """Return the newest known moment before the bad record; empty without an earlier version.

    The result is the last good moment, or an earlier moment if an upstream stage read the record. At the last good
    moment, rows that the upstream stage made from the record may be in flight, and a clone would read them.
    """
    path = explanation.named_record_path if explanation is not None else None
    if path is None or len(path.hops) < 2 or not outcome.good_ref:
        return outcome.good_ref
    first = path.hops[-1]
    return f"{outcome.app}/{first.stage}@v{first.version - 1}" if first.version > 1 else ""


def in_flight_note(outcome: Verdict, explanation: TracedCause | None) -> str:
    """Return a note if rows of the bad record may be in flight in a clone of the last good moment; else empty."""
    if outcome.lineage.direct == outcome.lineage.sources or ref_to_clone(outcome, explanation) != outcome.good_ref:
        return ""
    return (
        f"note: at {outcome.good_ref}, rows of the bad record may already be in flight, because an upstream stage may "
        "have read it: clone an earlier moment"
    )


def verdict_notes(outcome: Verdict, edge: str = "") -> Iterator[str]:
    """Yield notes about the limits of a verdict; `edge` is the requested change, `first` or `last`."""
    if outcome.more_rows:
        more = f"the query returns more than {MAX_ROWS:,} rows at {outcome.bad_ref}"
        yield f"note: {more}; keys that only later rows name are not reported"
    if outcome.flips is not None and len(outcome.flips.flips) > 1:
        turns = [f"{flip.ref} {'bad' if flip.bad else 'good'}" for flip in outcome.flips.flips[:MAX_SHOWN]]
        more = f", and {plural(len(outcome.flips.flips) - MAX_SHOWN, 'more change')}"
        turns += [more] * (len(outcome.flips.flips) > MAX_SHOWN)
        yield (
            f"the app changed between good and bad more than once: {', '.join(turns)}; "
            "--first or --last chooses the change to find"
        )
    elif outcome.non_monotone:
        against = ", ".join(f"{step.ref or 'its beginning'} is {step.answer}" for step in outcome.non_monotone)
        which_one = f"the {edge} that the search found" if edge else "one of the changes"
        narrow = f"narrow the search with --good and --bad{'' if edge else ', or give --first or --last'}"
        yield f"the app went from good to bad more than once ({against}); this commit is {which_one}: {narrow}"


def _sides(keys: KeyChanges | None) -> Any:
    return encode_array({"key": key.key, "before": key.before, "after": key.after} for key in keys or ())


def lineage_blocks(lineage: Lineage) -> Iterator[Block]:
    """Yield the offsets that a commit read, the offsets of users' topics from which they came, and lost offsets."""
    reads_sources = lineage.direct == lineage.sources
    if lineage.direct:
        counted = "" if lineage.records is None else f", {plural(lineage.records, 'record')}"
        yield ranges_table(f"input of this commit{counted}", ">offsets", lineage.direct)
    else:
        yield "it read no records"
    if not reads_sources:
        yield ""
        if lineage.sources:
            yield ranges_table("which came from", ">offsets", lineage.sources)
        else:
            yield "no record is behind these: rows fell due, windows ended, or rejected records were retried"
    if lineage.lost:
        yield ""
        yield ranges_table("gone from Kafka and never read", ">offsets", lineage.lost)


def ranges_table(heading: str, unit: str, ranges: Iterable[Window]) -> TableBlock:
    return TableBlock.from_rows((heading, unit), ((Name(str(window)), window.end - window.start) for window in ranges))


def _cause_blocks(explanation: TracedCause, *, every: bool) -> Iterator[Block]:
    if explanation.cause.kind != "unknown":
        yield ""
        yield Title(explanation.cause.sentence)
        yield from cause_facts(explanation.cause)
    if explanation.named_record_path is not None:
        yield from _record(explanation.named_record_path)
        yield from bad_records(explanation, every=every)
    if (note := explanation.cause.evidence.get(NOTE)) is not None:
        yield ""
        yield f"note: {note}"


def _record(guilty: RecordPath) -> Iterator[Block]:
    message, hops = guilty.source_record, guilty.hops
    if message is not None:
        yield ""
        key = [("key", message.key)] if message.key is not None else []
        parts = (*key, *((f"header {name}", data) for name, data in message.headers), ("value", message.value))
        place = [("in", message.location.place)] if message.location.place else []
        rows = [("record", str(message.location)), *place, ("sent", instants.format_with_age(message.time_ms))]
        for name, data in parts:
            rows.append(
                (
                    name,
                    format_value(None) if data is None else format_bytes(data, _MAX_TEXT, f"… ({len(data):,} bytes)"),
                )
            )
        yield TableBlock.from_rows(("", ""), rows)
    if hops:
        yield ""
        way = ((hop.stage, f"v{hop.version}", str(hop.record), hop.records, hop.replays) for hop in hops)
        yield TableBlock.from_rows(("stage", "version", "turned bad with", ">of", ">replays"), way)
        if not hops[0].alone:
            more = plural(hops[0].needs, "record") if hops[0].needs else "records"
            yield f"it turns the state bad only together with {more} before it"
    if guilty.tied:
        tied_records = ", ".join(map(str, guilty.tied[:MAX_SHOWN]))
        yield f"equally likely to be the first, with the same time in other partitions: {tied_records}"
    if guilty.keys:
        yield ""
        yield "its effect:"
        yield key_changes_table(guilty.keys)
    if guilty.reason:
        yield ""
        yield guilty.reason if message is not None else f"the record is unknown: {guilty.reason}"


def cause_data(cause: Cause) -> dict[str, Any]:
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
    """Yield the evidence of a cause that is not a record."""
    rows = [(heading, value) for heading, value in evidence_rows(cause) if value]
    if rows and cause.kind not in ("record", "records", "unknown"):
        yield TableBlock.from_rows(("", ""), rows)


def evidence_rows(cause: Cause) -> Iterator[tuple[str, Cell]]:
    """Yield the evidence of a cause with headings, except for values that the cause's sentence contains."""
    evidence = cause.evidence
    for name, value in evidence.items():
        heading = name.replace("_", " ")
        # The sentence already states how a deploy was proved, and which file to add.
        if name in (NOTE, "reason", "num_keys", "how", "add") or value is None or _is_in_sentence(cause, name, value):
            continue
        if name == "keys":
            yield ("keys", format_keys(value, int(evidence.get("num_keys", len(value)))))
        elif name == "since":
            yield (heading, f"{value['stage']}@v{value['version']}, {value['time']}")
        elif name == "read_to":
            yield ("read up to", formats.join_ranges(f"{place} ..{end}" for place, end in value.items()))
        elif isinstance(value, Mapping):
            yield (heading, str(Program(value["path"], value["checksum"])))
        else:
            yield (heading, str(value))


def _is_in_sentence(cause: Cause, name: str, value: object) -> bool:
    if name in ("stage", "version"):
        value = f"{cause.evidence.get('stage')}@v{cause.evidence.get('version')}"
    elif isinstance(value, Mapping) and "checksum" in value:
        value = str(Program(value["path"], value["checksum"]))
    return isinstance(value, str) and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", cause.sentence) is not None


def format_keys(values: list[dict[str, object]], count: int) -> str:
    shown = [", ".join(f"{name} = {value}" for name, value in key.items()) for key in values[:3]]
    more = [f"{count - len(shown):,} more"] if count > len(shown) else []
    return "; ".join([*shown, *more])


def bad_records(explanation: TracedCause, *, every: bool = False) -> Iterator[Block]:
    """Yield a table of the batch's bad records, if there are several; without `every`, only the first records."""
    records = explanation.named_record_path.records if explanation.named_record_path is not None else None
    if records is None or explanation.cause.kind not in ("record", "records", "watermark") or records.num_rows < 2:
        return
    shown = records if every else records.slice(0, MAX_SHOWN)
    yield ""
    rows = (
        (Name(row["record"]), Time(row["time_ms"], "milliseconds"), "yes" if row["alone"] else "with those before")
        for row in records_data(shown)
    )
    yield TableBlock.from_rows(("bad records", "sent", "by itself"), rows)
    if (more := records.num_rows - shown.num_rows) > 0:
        yield f"and {plural(more, 'more record')}: --all lists them, and --all --out FILE writes them"
    if explanation.named_record_path is not None and not explanation.named_record_path.is_complete:
        yield "there may be more: not all records of the batch were tried by themselves"


def records_table(explanation: TracedCause) -> pa.Table | None:
    return explanation.named_record_path.records if explanation.named_record_path is not None else None


def rows_for_file(verdict: Verdict, explanation: TracedCause, *, every: bool) -> tuple[pa.Table | None, str]:
    """Return the rows for `--out`, or None and the reason why there are none.

    The rows are the keys that turned bad or, with `every`, the bad records.
    """
    if every:
        return records_table(explanation), "the bad records are not known"
    if verdict.keys is not None:
        return verdict.keys.to_table(), ""
    return None, "no key is certain" if verdict.candidates else f"{verdict.stage} has no table, so no key turned bad"


def records_data(records: pa.Table) -> list[dict[str, Any]]:
    """Return the bad records as data for JSON: topic, partition, offset, time, Kafka key in hexadecimal, and `alone`.

    `alone` is true if the record is bad by itself, and false if it is bad only together with earlier records.
    """
    return [
        {
            "record": str(RecordLocation(row["topic"], row["partition"], row["offset"], row["row"])),
            "time_ms": int(row["time"].timestamp() * 1000),
            "key": row["key"].hex() if row["key"] is not None else None,
            "alone": row["alone"],
        }
        for row in records.to_pylist()
    ]


def cause_noun(cause: Cause) -> str:
    return CLASSES[cause.kind].noun


def record_data(guilty: RecordPath | None) -> dict[str, Any] | None:
    """Return the record as data for JSON, or None; bytes are hexadecimal."""
    if guilty is None:
        return None
    message, where = guilty.source_record, guilty.source_record.location if guilty.source_record else None

    def hexadecimal(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    return {
        "address": str(where) if where else None,
        **({"place": where.place} if where and where.place else {}),
        **{name: getattr(where, name, None) for name in ("topic", "partition", "offset")},
        "time_ms": message.time_ms if message else None,
        "key": hexadecimal(message.key) if message else None,
        "value": hexadecimal(message.value) if message else None,
        "headers": [{"name": name, "value": hexadecimal(value)} for name, value in message.headers] if message else [],
        "hops": [asdict(hop) | {"record": str(hop.record)} for hop in guilty.hops],
        "keys": _sides(guilty.keys),
        **attributes(guilty, "windows", "others", "of_key", "proved"),
        "reason": guilty.reason or None,
    }


def search_explanation_result(search: SearchSession) -> Result:
    rows = []
    for number, answer in enumerate(search.marks, 1):
        how = ("-", "by hand") if answer.by_hand else (formats.duration(answer.took_ms), answer.why)
        rows.append((str(number), answer.ref or "before the first commit", answer.answer, *how))
    last = f"{search.wanted or 'the beginning'} waits for an answer" if search.wanted is not None else search.found
    return Result(search, TableBlock.from_rows((">", "moment", "answer", ">took", "why"), rows), *filter(None, [last]))


def pending_answer_result(search: SearchSession, cut: Cut, num_left: int) -> Result:
    """Return the result that asks the user to judge a moment. About `num_left` more moments need a judgement."""
    app, ref = search.asked.app, search.wanted or ""
    stage = ref.partition("/")[2].partition("@")[0]
    table = stage if stage in cut.tables else next(iter(cut.tables), "")
    return Result(
        {"app": app, "wanted": ref, "cut": cut.versions, "left": num_left},
        f"look at {ref or 'the beginning'}, {instants.format_with_age(cut.time_ms)}; about {num_left} more after it:",
        *([("  ", NextCommand(f"slackwater query {ref} 'FROM {table}'"))] if ref and table else []),
        ("then answer: ", NextCommand(f"slackwater bisect good {app}"), " (or bad, or skip)"),
    )


def invariants_line(findings: Findings) -> str:
    """Return a line about one evaluation of all invariants: time, moment, and number of invariants by state."""
    by_state = Counter(result.state for result in findings.results)
    states = ", ".join(f"{n} {verbs[n > 1]}" for state, verbs in _STATES.items() if (n := by_state[state]))
    recovered = [result.invariant.name for result in findings.changed_results if result.state == "holds"]
    parts = (
        instants.format_iso(findings.cut.time_ms),
        findings.ref,
        states,
        f"{', '.join(recovered)} again" if recovered else "",
        f"last good: {findings.last_good}" if findings.last_good and not findings.is_good else "",
    )
    return "  ".join(filter(None, parts))


def failure_blocks(rows: pa.Table, invariant: Invariant, findings: Findings) -> Iterator[Block]:
    yield Title(f"{invariant.name} does not hold at {findings.ref}")
    yield grid(rows, MAX_SHOWN)
    if rows.num_rows > MAX_SHOWN:
        yield f"and more; slackwater query {findings.ref} {formats.quote_word(invariant.where)} shows them"


def breaking_commit_blocks(verdict: Verdict, cause: Cause, invariant: Invariant) -> Iterator[Block]:
    """Yield the commit that broke an invariant, and its cause, found without a replay."""
    yield f"{verdict.stage} v{verdict.bad_version} broke {invariant.name}; before it: {verdict.good_ref or '-'}"
    if cause.kind != "unknown":
        yield cause.sentence
    if verdict.lineage.sources:
        yield f"it read {formats.join_ranges(map(str, verdict.lineage.sources))}"
    good = f" --good {verdict.good_ref}" if verdict.good_ref else ""
    where = formats.quote_word(invariant.where)
    search = NextCommand(f"slackwater bisect {verdict.app}{good} --bad {verdict.bad_ref} --where {where}")
    yield "for details: ", search


def invariants_data(
    findings: Findings, verdicts: Mapping[str, Verdict | None], reports: Mapping[str, Path | None]
) -> dict[str, Any]:
    """Return an evaluation of all invariants as data for JSON.

    Newly failing invariants have a verdict in `verdicts` and a report in `reports`, by name.
    """
    cut, invariants = findings.cut, []
    for result in findings.results:
        verdict, report = verdicts.get(result.invariant.name), reports.get(result.invariant.name)
        invariants.append(
            {
                "name": result.invariant.name,
                "state": result.state,
                "rows": table_data(result.rows)["rows"] if result.rows is not None else None,
                "error": result.error.message if result.error is not None else None,
                "first_bad": verdict.bad_ref if verdict is not None else None,
                "last_good": verdict.good_ref or None if verdict is not None else None,
                "source_windows": verdict.lineage.sources if verdict is not None else None,
                "report": report,
            }
        )
    about = {
        "app": cut.app,
        "ref": findings.ref,
        **attributes(cut, "time_ms", "versions"),
        "last_good": findings.last_good or None,
    }
    return about | {"invariants": invariants}
