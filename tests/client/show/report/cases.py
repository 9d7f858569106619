"""A real verdict with its evidence, and a parser for reports."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
from markdown_it import MarkdownIt
from slackwater.client.show.render import html, markdown
from slackwater.client.show.report import Mask, ReportInput, report_page
from slackwater.snapshot.bisect.causes import Cause, TracedCause
from slackwater.snapshot.bisect.evidence import collect_evidence
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import Hop, RecordLocation, RecordPath, SourceRecord
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.diff.key_changes import KeyChanges
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.support.histories import Flight, FlightsApp, Kafka, flights

WHERE = "SELECT tail, delay FROM aircraft WHERE delay > 1000 AND tail <> 'N999'"


def real_case(cache: SstCache) -> ReportInput:
    """Return the verdict on a fault in the middle stage, found in a history with snapshots on both sides."""
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(200))
    pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "before")
    app.send(Flight("N001", "C1", 5_000), *flights(6))
    app.step_all()
    app.run(flights(90))
    pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "behind")
    verdict = bisect(app.store, cache, "flights", WHERE)
    evidence = collect_evidence(app.store, cache, verdict)
    record = RecordLocation("flights", 1, 424)
    hops = (
        Hop(
            "aircraft", verdict.bad_version, RecordLocation("flights-by-aircraft-repartition", 1, 42, 5), 7, 1, 3, True
        ),
        Hop("legs", verdict.bad_version, record, 7, 7, 4, True),
    )
    message = SourceRecord(
        record, 1_735_689_785_123, b"N001", b'{"delay": 5000}', (("trace", b"4bf9"), ("schema", None))
    )
    guilty = RecordPath(hops, message, "", (), verdict.keys)
    cause = Cause("record", True, f"{record} is the record behind it", record, None, (record,), {"alone": True})
    return ReportInput(verdict, TracedCause(cause, guilty), evidence, "flights-staging", "", 1_790_000_000_000)


def with_values(
    case: ReportInput, texts: Sequence[str], numbers: tuple[int, int], data: Sequence[bytes]
) -> ReportInput:
    """Return the case with these values in every place where a report shows data.

    Args:
        case: the case.
        texts: five texts: for a key, a row before and after, and two literals in the predicate.
        numbers: two different numbers: for the row before and after.
        data: three values: for a record's key, header and value.
    """
    key, before, after, literal, comment = texts
    there = np.array([True])
    keys = KeyChanges(
        pa.table({"tail": [key]}),
        pa.table({"note": [before], "n": [numbers[0]], "raw": [data[0]], "list": [[before]]}),
        pa.table({"note": [after], "n": [numbers[1]], "raw": [data[1]], "list": [[after]]}),
        there,
        there,
        dict.fromkeys(("note", "n", "raw", "list"), there),
        from_predicate=True,
    )
    quoted = literal.replace("'", "''")
    sql = f"SELECT tail FROM aircraft WHERE tail = '{quoted}' -- {' '.join(comment.split())}\n OR delay > {numbers[0]}"
    assert case.guilty is not None
    assert case.guilty.source_record is not None
    message = replace(case.guilty.source_record, key=data[0], value=data[2], headers=(("trace", data[1]),))
    reached = tuple(replace(each, keys=keys) for each in case.evidence.affected_stages)
    return replace(
        case,
        verdict=replace(case.verdict, keys=keys, predicate=SqlPredicate(sql)),
        explanation=replace(case.explanation, record_path=replace(case.guilty, source_record=message, keys=keys)),
        evidence=replace(case.evidence, affected_stages=reached),
    )


def reports(case: ReportInput, *, show: bool = False) -> tuple[str, str]:
    """Return the case as HTML and as Markdown."""
    made = report_page(case, Mask(show))
    return html.render(made), markdown.render(made)


def rendered(text: str) -> str:
    """Return Markdown as a browser renders it: HTML with embedded markup."""
    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


@dataclass
class Parsed(HTMLParser):
    """Result of the standard library's HTML parser."""

    tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = field(default_factory=list)
    """Start tags with their attributes, and end tags, in order."""
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Texts of elements, by tag."""
    markup: list[str] = field(default_factory=list)
    """Comments, declarations and processing instructions."""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []

    @classmethod
    def of(cls, text: str) -> "Parsed":
        parsed = cls()
        parsed.feed(text)
        parsed.close()
        return parsed

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        if tag not in ("meta", "br", "hr"):
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", ()))
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data

    def handle_comment(self, data: str) -> None:
        self.markup.append(data)

    def handle_decl(self, decl: str) -> None:
        self.markup.append(decl)

    def handle_pi(self, data: str) -> None:
        self.markup.append(data)
