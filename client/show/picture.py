"""SVG picture of a bisect: commits, probed moments and snapshots, placed by their distance from the first bad commit.

The x axis is the number of commits between a point and the change from good to bad, on a logarithmic scale. A binary
search halves this distance with each probe, and commits near the change are drawn with enough space between them.
"""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import copysign, log2
from operator import attrgetter
from typing import TYPE_CHECKING

from ...common.printable import printable
from . import formats

if TYPE_CHECKING:
    from ...snapshot.bisect.evidence import VerdictEvidence
    from ...snapshot.bisect.verdict import Answer, Verdict

_WIDTH, _LEFT, _RIGHT = 960, 130, 24
_CURVE, _ROW, _LANE = 110, 40, 30
_LABEL = 46
_MAX_NAME_LENGTH = 16
_AXIS_DISTANCES = (8, 64, 512, 4_096, 32_768)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the picture, `distance` commits after the first bad commit; -1 is the last good commit."""

    distance: int
    name: str
    answer: "Answer | None" = None
    rows: int | None = None
    """Number of rows that the predicate's query returned at the point."""


@dataclass(frozen=True, slots=True)
class SearchPicture:
    """Content of the picture. Its points are in the order of the commits."""

    lanes: tuple[tuple[str, tuple[Point, ...]], ...]
    """Commits near the verdict, grouped by stage, upstream stages first."""
    bad_stage: str
    certain: bool
    """False if the first bad commit may be earlier, since moments were skipped."""
    probes: tuple[Point, ...]
    snapshots: tuple[Point, ...]
    wrong: tuple[Point, ...]


def search_picture(verdict: "Verdict", evidence: "VerdictEvidence") -> SearchPicture:
    from ...snapshot.bisect.evidence import commits_from_bad
    from ...snapshot.cut.graph import topological_order

    in_order, bad = attrgetter("distance"), verdict.bad.versions
    probes = [Point(commits_from_bad(verdict, step.cut.versions), step.ref, step.answer) for step in verdict.steps]
    probes.sort(key=in_order)
    # A stage that is missing in a snapshot was retired or had not begun, so it counts as at the verdict.
    named = (Point(commits_from_bad(verdict, bad | snapshot.stages), snapshot.name) for snapshot in evidence.snapshots)
    good = Point(commits_from_bad(verdict, verdict.good.versions), verdict.good_ref, "good")
    wrong = {
        probe.distance: Point(probe.distance, probe.name, rows=evidence.wrong_row_counts.get(probe.name, 0))
        for probe in (good, *probes, Point(0, verdict.bad_ref, "bad"))
        if probe.answer == "good" or probe.name in evidence.wrong_row_counts
    }
    first, last = min(probes[0].distance, good.distance), max(probes[-1].distance, 0)
    bad_index = evidence.commits.index(verdict.bad.stages[verdict.stage])
    lanes: dict[str, list[Point]] = {
        stage: [] for stage in topological_order({commit.stage: commit for commit in evidence.commits})
    }
    for number, commit in enumerate(evidence.commits):
        lanes[commit.stage].append(Point(number - bad_index, f"v{commit.version}"))
    return SearchPicture(
        lanes=tuple((stage, tuple(commits)) for stage, commits in lanes.items()),
        bad_stage=verdict.stage,
        certain=not verdict.candidates,
        probes=tuple(probes),
        snapshots=tuple(sorted((point for point in named if first <= point.distance <= last), key=in_order)),
        wrong=tuple(sorted(wrong.values(), key=in_order)) if evidence.wrong_row_counts else (),
    )


def draw_svg(timeline: SearchPicture) -> str:
    """Return the picture as SVG, with classes that the style sheet colours."""
    lanes_top = _CURVE + _ROW + 24
    snapshots_top = lanes_top + _LANE * len(timeline.lanes)
    bottom = snapshots_top + (_ROW if timeline.snapshots else 0) + 6
    points = [*timeline.probes, *timeline.snapshots, *(point for _, lane in timeline.lanes for point in lane)]
    scale = _Scale([point.distance for point in points])
    drawn = [
        _tag("rect", "after", x=scale.turn, y=20, width=_WIDTH - _RIGHT - scale.turn, height=bottom - 20),
        _tag("line", "turn", x1=scale.turn, y1=20, x2=scale.turn, y2=bottom),
        _text("turns bad" if timeline.certain else "bad at the latest", scale.turn, 13, "strong middle"),
        *(_curve(timeline, scale) if timeline.wrong else ()),
        *_probes(timeline, scale, _CURVE + 44),
    ]
    for number, (stage, commits) in enumerate(timeline.lanes):
        y = lanes_top + 20 + _LANE * number
        drawn += (_text(_short(stage), 0, y + 4), _rule(y))
        for commit, x, has_room in _place_labels(commits, scale, _LABEL):
            bad = stage == timeline.bad_stage and commit.distance == 0
            name = _title(f"{stage}@{commit.name}")
            drawn.append(_tag("circle", "commit bad" if bad else "commit", name, cx=x, cy=y, r=4))
            if has_room:
                drawn.append(_text(commit.name, x, y - 8, "strong middle" if bad else "middle"))
    if timeline.snapshots:
        drawn.append(_text("snapshots", 0, snapshots_top + 26))
    for snapshot, x, has_room in _place_labels(timeline.snapshots, scale, 3 * _LABEL):
        y = snapshots_top + 26
        drawn.append(_tag("path", "snapshot", _title(snapshot.name), d=f"M{x:.1f} {y:.1f}v-18l9 5l-9 5"))
        if has_room:
            fits = x + 3 * _LABEL <= _WIDTH
            drawn.append(_text(_short(snapshot.name), x + 12 if fits else x - 5, y, "" if fits else "end"))
    drawn += _axis(scale, bottom)
    summary = f"A search with {formats.plural(len(timeline.probes), 'probe')}; the table below has what it shows."
    size, content = f"0 0 {_WIDTH} {bottom + 26}", "".join(drawn)
    return f'<svg role="img" viewBox="{size}"><title>{summary}</title>{content}</svg>'


class _Scale:
    def __init__(self, distances: Sequence[int]) -> None:
        self.range = range(min(distances), max(distances) + 1)
        self._first, last = self._logarithm(min(distances)), self._logarithm(max(distances))
        self._unit = (_WIDTH - _RIGHT - _LEFT - 20) / (last - self._first)
        # Between -1, the last good commit, and 0, the first bad commit.
        self.turn = self(-0.5)

    def __call__(self, at: float) -> float:
        return _LEFT + 10 + (self._logarithm(at) - self._first) * self._unit

    @staticmethod
    def _logarithm(at: float) -> float:
        return copysign(log2(1 + abs(at + 0.5)), at + 0.5)


def _curve(timeline: SearchPicture, scale: _Scale) -> Iterator[str]:
    bottom, highest = _CURVE + 20, max(wrong.rows or 0 for wrong in timeline.wrong) or 1
    points = [(scale(wrong.distance), bottom - (wrong.rows or 0) / highest * (_CURVE - 14)) for wrong in timeline.wrong]
    corners = sorted([*points, (scale.turn, float(bottom))])
    yield _text("wrong rows", 0, bottom - _CURVE / 2)
    yield _text(formats.count(highest), _LEFT - 8, 40, "end")
    yield _text("0", _LEFT - 8, bottom + 4, "end")
    yield _rule(bottom)
    yield _tag("polyline", "curve", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners))
    for wrong, (x, y) in zip(timeline.wrong, points, strict=True):
        yield _tag("circle", "sample", _title(f"{wrong.name}: {wrong.rows}"), cx=x, cy=y, r=3)


def _probes(timeline: SearchPicture, scale: _Scale, y: float) -> Iterator[str]:
    """Draw good probes as circles, bad probes as crosses and skipped probes as dashes, readable without colours."""
    yield _text("probes", 0, y + 5)
    yield _rule(y)
    for probe in timeline.probes:
        x, title = scale(probe.distance), _title(f"{probe.name}: {probe.answer}")
        match probe.answer:
            case "good":
                yield _tag("circle", "good", title, cx=x, cy=y, r=6)
            case "bad":
                yield _tag("path", "bad", title, d=f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10")
            case "skip":
                yield _tag("path", "skip", title, d=f"M{x - 5:.1f} {y:.1f}h10")


def _place_labels(points: Iterable[Point], scale: _Scale, room: float) -> Iterator[tuple[Point, float, bool]]:
    labelled: list[float] = []
    for point in sorted(points, key=lambda point: abs(point.distance + 0.5)):
        x = scale(point.distance)
        has_room = _has_room(x, labelled, room)
        labelled += [x] * has_room
        yield point, x, has_room


def _axis(scale: _Scale, y: float) -> Iterator[str]:
    yield _rule(y)
    yield _text("commits", 0, y + 18)
    labelled = [scale.turn]
    for distance in _AXIS_DISTANCES:
        for at, where in ((-distance, "before"), (distance - 1, "after")):
            x = scale(at)
            if at in scale.range and _has_room(x, labelled, 2 * _LABEL):
                labelled.append(x)
                yield _tag("line", "rule", x1=x, y1=y, x2=x, y2=y + 5)
                yield _text(f"{formats.count(distance)} {where}", x, y + 18, "middle")


def _has_room(x: float, labelled: Iterable[float], room: float) -> bool:
    return all(abs(x - other) >= room for other in labelled) and x <= _WIDTH - _RIGHT - 8


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…"


def _rule(y: float) -> str:
    return _tag("line", "rule", x1=_LEFT, y1=y, x2=_WIDTH - _RIGHT, y2=y)


def _title(text: str) -> str:
    return f"<title>{html.escape(printable(text))}</title>"


def _text(text: str, x: float, y: float, classes: str = "") -> str:
    return _tag("text", classes, html.escape(printable(text)), x=x, y=y)


def _tag(name: str, classes: str, content: str = "", **attributes: float | str) -> str:
    values = {"class": classes} if classes else {}
    values |= {key: f"{value:.1f}" if isinstance(value, float) else str(value) for key, value in attributes.items()}
    pairs = " ".join(f'{key}="{value}"' for key, value in values.items())
    return f"<{name} {pairs}>{content}</{name}>"
