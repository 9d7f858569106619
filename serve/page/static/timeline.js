// The time slider: commits in order, all equally wide, with annotations above them.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { path, query } from "./ask.js";
import { moment, versionOf } from "./route.js";
import { useRequest } from "./parts.js";
import { plural, span, tick, time } from "./words.js";

const HEIGHT = 46;
// As many commits as there is room for bars.
const POINTS = Math.min(400, Math.max(50, Math.round(innerWidth / 300) * 50));
const GLYPH = { snapshot: "◆", deploy: "▲", migration: "⬒", operation: "✎", bisect: "✕" };

// The index of the last point that is not after a time.
function indexAtTime(points, ms) {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].time_ms <= ms) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function indexOfMoment(points, at, ms) {
  if (!at) return points.length - 1;
  const { stage, ref } = moment(at);
  const exact = stage ? points.findIndex((each) => each.stage === stage && `v${each.version}` === ref) : -1;
  return exact >= 0 ? exact : ms ? Math.max(0, indexAtTime(points, ms)) : points.length - 1;
}

export const momentOfPoint = (point) => versionOf(point.stage, point.version);
const momentOfAnnotation = (annotation) => (annotation.kind === "snapshot" ? annotation.label : annotation.stage ? versionOf(annotation.stage, annotation.version) : new Date(annotation.time_ms).toISOString());

export function Timeline({ app, at, atMs, against, againstMs, found, probes, live, control, onMove }) {
  const [zoom, setZoom] = useState([]);
  const [from, to] = zoom.at(-1) ?? [0, 0];
  const asked = useRequest(query(path("apps", app, "timeline"), { points: POINTS, from_ms: from || "", to_ms: to || "" }), live);
  const [width, setWidth] = useState(800);
  const track = useRef(null);
  const points = asked.data?.points ?? [];
  const last = points.length - 1;
  const current = indexOfMoment(points, at, atMs);
  const x = (index) => (last > 0 ? (index / last) * (width - 12) : 0) + 6;

  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    if (track.current) seen.observe(track.current);
    return () => seen.disconnect();
  }, [points.length > 0]);

  const move = (to_) => {
    const next = Math.min(last, Math.max(0, to_));
    if (points[next]) onMove(next === last && !from ? "" : momentOfPoint(points[next]));
  };
  const zoomIn = () => {
    const quarter = Math.max(4, Math.floor(points.length / 8));
    const low = points[Math.max(0, current - quarter)];
    const high = points[Math.min(last, current + quarter)];
    if (!asked.data?.is_whole && low && high) setZoom([...zoom, [low.time_ms, high.time_ms]]);
  };
  const zoomOut = () => setZoom(zoom.slice(0, -1));
  const annotations = useMemo(() => {
    const all = [...(asked.data?.marks ?? []), ...found];
    return all.map((annotation) => ({ ...annotation, index: indexAtTime(points, annotation.time_ms) })).filter((annotation) => annotation.index >= 0);
  }, [asked.data, found]);
  const toAnnotation = (step) => {
    const sorted = [...annotations].sort((a, b) => a.index - b.index);
    const next = step > 0 ? sorted.find((annotation) => annotation.index > current) : sorted.findLast((annotation) => annotation.index < current);
    if (next) onMove(momentOfAnnotation(next));
  };
  control.current = { move: (by) => move(current + by), to: move, zoomIn, zoomOut, toAnnotation, last, focus: () => track.current?.focus() };

  if (!points.length) return html`<div class="timeline empty">${asked.problem ? (asked.problem.status === 404 ? "" : asked.problem.message) : asked.data ? "No commit yet." : ""}</div>`;
  const onPointer = (event) => {
    if (event.type === "pointerdown") event.currentTarget.setPointerCapture(event.pointerId);
    else if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
    const box = event.currentTarget.getBoundingClientRect();
    move(Math.round(((event.clientX - box.left - 6) / (width - 12)) * last));
  };
  const point = points[current];
  const newest = points[last];
  const words = `${point.stage} v${point.version}, ${time(point.time_ms)}`;
  return html`<section class="timeline" aria-label="Time">
    <${Annotations} annotations=${annotations} x=${x} width=${width} onMove=${onMove} />
    <div class="track" ref=${track} role="slider" tabindex="0" aria-label="Moment" aria-orientation="horizontal"
      aria-valuemin="0" aria-valuemax=${last} aria-valuenow=${current} aria-valuetext=${at ? words : `now: ${words}`}
      onPointerDown=${onPointer} onPointerMove=${onPointer}>
      <${Bars} points=${points} x=${x} width=${width} current=${current} />
      <svg class="over" width=${width} height=${HEIGHT} aria-hidden="true">
        ${probes.map((probe) => html`<circle key=${probe.at} class=${`probe ${probe.outcome}`} cx=${x(indexOfMoment(points, probe.at, probe.time_ms))} cy="6" r="4" />`)}
        ${against && html`<line class="against" x1=${x(indexOfMoment(points, against, againstMs))} x2=${x(indexOfMoment(points, against, againstMs))} y1="0" y2=${HEIGHT} />`}
        <line class="thumb" x1=${x(current)} x2=${x(current)} y1="0" y2=${HEIGHT} />
        <circle class="thumb" cx=${x(current)} cy=${HEIGHT - 5} r="5" />
      </svg>
    </div>
    <${Ticks} points=${points} x=${x} width=${width} />
    <div class="steps">
      <button type="button" onClick=${() => move(current - 1)} disabled=${current === 0} aria-label="Previous commit">‹</button>
      <button type="button" onClick=${() => move(current + 1)} disabled=${current === last} aria-label="Next commit">›</button>
      <button type="button" onClick=${zoomIn} disabled=${asked.data.is_whole} aria-label="Zoom in">+</button>
      <button type="button" onClick=${zoomOut} disabled=${!zoom.length} aria-label="Zoom out">−</button>
      <button type="button" onClick=${() => onMove("")} aria-pressed=${!at}>now</button>
      <span class="note">${plural(asked.data.commits, "commit")}${asked.data.is_whole ? "" : `, ${points.length} of them shown; + shows more`} over ${span(newest.time_ms - points[0].time_ms)}</span>
      <ul class="legend" aria-hidden="true">${[...new Set(annotations.map((annotation) => annotation.kind))].map((kind) => html`<li><span class=${`glyph ${kind}`}>${GLYPH[kind]}</span>${kind}</li>`)}</ul>
    </div>
  </section>`;
}

// Bars of the rows that each commit read, by square root, so that one large batch does not dwarf all others.
function Bars({ points, x, width, current }) {
  const paths = useMemo(() => {
    const most = Math.sqrt(Math.max(1, ...points.map((each) => each.rows)));
    const step = points.length > 1 ? (width - 12) / (points.length - 1) : width;
    const drawn = { batch: "", other: "" };
    points.forEach((each, at) => {
      const tall = each.kind === "batch" ? 3 + (Math.sqrt(each.rows) / most) * (HEIGHT - 18) : 3;
      drawn[each.kind === "batch" ? "batch" : "other"] += `M${x(at).toFixed(1)} ${HEIGHT}v${-tall.toFixed(1)}`;
    });
    return { drawn, thick: Math.max(1, Math.min(8, step * 0.62)) };
  }, [points, width]);
  return html`<svg class="bars" width=${width} height=${HEIGHT} aria-hidden="true">
    <line class="ground" x1="0" x2=${width} y1=${HEIGHT - 0.5} y2=${HEIGHT - 0.5} />
    <path class="batch" d=${paths.drawn.batch} stroke-width=${paths.thick} />
    <path class="other" d=${paths.drawn.other} stroke-width=${paths.thick} />
    <rect class="past" x=${x(current)} y="0" width=${Math.max(0, width - x(current))} height=${HEIGHT} />
  </svg>`;
}

function Ticks({ points, x, width }) {
  const total = points.at(-1).time_ms - points[0].time_ms;
  const wanted = Math.max(2, Math.floor(width / 150));
  const places = [...new Set(Array.from({ length: wanted }, (_, at) => Math.round((at / (wanted - 1)) * (points.length - 1))))];
  return html`<svg class="ticks" width=${width} height="16" aria-hidden="true">
    ${places.map((at, number) => html`<text x=${x(at)} y="12" text-anchor=${number === 0 ? "start" : number === places.length - 1 ? "end" : "middle"}>${tick(points[at].time_ms, total)}</text>`)}
  </svg>`;
}

// One tab stop; arrow keys move between the annotations.
function Annotations({ annotations, x, width, onMove }) {
  const [chosen, choose] = useState(0);
  const bar = useRef(null);
  const sorted = useMemo(() => [...annotations].sort((a, b) => a.index - b.index), [annotations]);
  const step = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const next = Math.min(sorted.length - 1, Math.max(0, chosen + by));
    choose(next);
    bar.current.children[next]?.focus();
  };
  if (!sorted.length) return html`<div class="marks" />`;
  // Spread overlapping annotations, as far as there is room.
  const lefts = [];
  for (const annotation of sorted) lefts.push(Math.max(x(annotation.index), (lefts.at(-1) ?? -99) + 15));
  const room = (at) => (lefts[at + 1] ?? width) - lefts[at];
  return html`<div class="marks" ref=${bar} role="toolbar" aria-label="Snapshots, deploys, migrations, operations" onKeyDown=${step}>
    ${sorted.map((annotation, at) => {
      const words = `${annotation.kind}: ${annotation.label}${annotation.by ? ` by ${annotation.by}` : ""}${annotation.why ? ` (${annotation.why})` : ""}, ${time(annotation.time_ms)}`;
      return html`<button type="button" class=${`mark ${annotation.kind}`} style=${{ left: `${Math.min(lefts[at], width - 6)}px` }} tabindex=${at === Math.min(chosen, sorted.length - 1) ? 0 : -1}
        onFocus=${() => choose(at)} onClick=${() => onMove(momentOfAnnotation(annotation))} title=${words} aria-label=${words}>
        <span class=${`glyph ${annotation.kind}`}>${GLYPH[annotation.kind]}</span>${annotation.kind === "snapshot" && room(at) > 30 + 7 * annotation.label.length ? html`<span class="label">${annotation.label}</span>` : ""}</button>`;
    })}
  </div>`;
}
