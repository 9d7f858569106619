// Topics, stages and sinks as a graph: from left to right, or downwards on a narrow page.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { address } from "../route.js";
import { ago, count, plural, time } from "../words.js";

const WIDE = { w: 178, h: 78, gap: 76, beside: 22 };
const NARROW = { w: 210, h: 78, gap: 44, beside: 12 };
const SMALL = 36;
const MOST_NAMES = 24;
const MOST_WIDE = 420;
const LETTER = { stage: 8.4, other: 6.8 }; // average width of a letter
const BESIDE_NAME = 62; // the margin, and the version
const ZOOMS = [0.25, 0.4, 0.6, 0.8, 1, 1.5];

// Nodes with their depth, and edges, derived from the stages' inputs and sinks.
function graphOf(stages, tables) {
  const nodes = new Map();
  const edges = [];
  const depth = new Map();
  const alive = stages.filter((stage) => !stage.retired);
  for (const stage of alive) nodes.set(`stage ${stage.stage}`, { kind: "stage", name: stage.stage, stage });
  for (const stage of alive) {
    const to = `stage ${stage.stage}`;
    for (const input of stage.inputs) {
      const from = input.upstream ? `stage ${input.upstream}` : `topic ${input.topic}`;
      if (!input.upstream && !nodes.has(from)) nodes.set(from, { kind: "topic", name: input.topic });
      if (nodes.has(from)) edges.push({ from, to, name: input.upstream ? input.name : "", input });
    }
    for (const sink of stage.sinks) {
      const name = `sink ${stage.stage} ${sink.name}`;
      nodes.set(name, { kind: "sink", name: sink.name, sink });
      edges.push({ from: to, to: name, name: "", sink });
    }
  }
  const find = (name) => {
    if (depth.has(name)) return depth.get(name);
    depth.set(name, 0);
    const before = edges.filter((edge) => edge.to === name).map((edge) => find(edge.from) + 1);
    depth.set(name, Math.max(0, ...before));
    return depth.get(name);
  };
  for (const name of nodes.keys()) find(name);
  return { nodes: [...nodes].map(([id, node]) => ({ id, ...node, depth: depth.get(id) })), edges, tables };
}

// The position of each node. Nodes of one depth form a layer, in the order of their predecessors.
function layOut({ nodes, edges }, isDown, room) {
  // Leave room for channel names between the stages.
  const longest = Math.max(0, ...edges.map((edge) => edge.name.length));
  const size = { ...(isDown ? NARROW : WIDE) };
  if (!isDown) size.gap = Math.min(200, Math.max(WIDE.gap, 20 + longest * 6.2));
  const named = nodes.map(({ kind, name }) => (kind === "stage" ? name.length * LETTER.stage + BESIDE_NAME : name.length * LETTER.other + 28));
  size.w = Math.ceil(Math.min(isDown ? room : MOST_WIDE, Math.max(size.w, ...named)));
  const layers = [];
  for (const node of nodes) (layers[node.depth] ??= []).push(node);
  const at = new Map();
  let along = 0;
  const widest = Math.max(...layers.map((layer) => layer.length));
  const across = widest * ((isDown ? size.w : size.h) + size.beside) - size.beside;
  // A graph that does not fit is aligned at its start rather than centred.
  const isLarge = across > (isDown ? room : 900);
  for (const layer of layers) {
    const middle = (node) => {
      const from = edges.filter((edge) => edge.to === node.id).map((edge) => at.get(edge.from)?.mid ?? 0);
      return from.length ? from.reduce((a, b) => a + b, 0) / from.length : 0;
    };
    const sorted = [...layer].sort((a, b) => middle(a) - middle(b));
    const taken = sorted.length * ((isDown ? size.w : size.h) + size.beside) - size.beside;
    sorted.forEach((node, number) => {
      const start = (isLarge ? 0 : (across - taken) / 2) + number * ((isDown ? size.w : size.h) + size.beside);
      const h = node.kind === "stage" ? size.h : SMALL;
      const box = isDown
        ? { x: start, y: along + (size.h - h) / 2, w: size.w, h }
        : { x: along, y: start + (size.h - h) / 2, w: size.w, h };
      at.set(node.id, { ...box, mid: start });
    });
    along += (isDown ? size.h : size.w) + size.gap;
  }
  along -= size.gap;
  return { at, width: isDown ? across : along, height: isDown ? along : across };
}

export function Graph({ current, route, isNow, wanted }) {
  const [room, setRoom] = useState(1000);
  const [zoom, setZoom] = useState(1);
  const box = useRef(null);
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setRoom(entry.contentRect.width));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  const graph = graphOf(current.stages, current.tables);
  const isDown = room < 640;
  const { at, width, height } = layOut(graph, isDown, room);
  const isDense = graph.edges.length > MOST_NAMES;
  // Scroll to the first stage that matches the search.
  const first = wanted && graph.nodes.find((node) => node.kind === "stage" && wanted.has(node.name));
  useEffect(() => {
    if (!first) return;
    const { x, y, w, h } = at.get(first.id);
    box.current.scrollTo({ left: (x + w / 2) * zoom - box.current.clientWidth / 2, top: (y + h / 2) * zoom - box.current.clientHeight / 2 });
  }, [first?.id, zoom]);
  const isLarge = width > room || height > 700;
  const step = (by) => setZoom(by > 0 ? (ZOOMS.find((each) => each > zoom) ?? zoom) : (ZOOMS.findLast((each) => each < zoom) ?? zoom));
  return html`${isLarge && html`<div class="zoom" role="group" aria-label="Size of the graph">
      <button type="button" onClick=${() => step(-1)} disabled=${zoom <= ZOOMS[0]} aria-label="Smaller graph">−</button>
      <button type="button" onClick=${() => step(1)} disabled=${zoom >= ZOOMS.at(-1)} aria-label="Larger graph">+</button>
      <button type="button" onClick=${() => setZoom(Math.min(1, (room - 4) / (width + 4)))}>all of it</button>
      <span class="note">${Math.round(zoom * 100)} %</span>
    </div>`}
    <div class="scroll graph" ref=${box} tabindex="0" role="region" aria-label="Stages and what they read and send">
    <svg width=${(width + 4) * zoom} height=${(height + 4) * zoom} viewBox=${`-2 -2 ${width + 4} ${height + 4}`}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
      ${graph.edges.map((edge) => html`<${Edge} edge=${edge} from=${at.get(edge.from)} to=${at.get(edge.to)} isDown=${isDown} isDense=${isDense} waiting=${current.waiting} />`)}
      ${graph.nodes.map((node) => html`<${Node} node=${node} box=${at.get(node.id)} route=${route} tables=${current.tables} isNow=${isNow} waiting=${current.waiting} isDim=${wanted && !wanted.has(node.name)} />`)}
    </svg>
  </div>`;
}

function Edge({ edge, from, to, isDown, isDense, waiting }) {
  const [x1, y1] = isDown ? [from.x + from.w / 2, from.y + from.h] : [from.x + from.w, from.y + from.h / 2];
  const [x2, y2] = isDown ? [to.x + to.w / 2, to.y] : [to.x, to.y + to.h / 2];
  const bend = (isDown ? y2 - y1 : x2 - x1) / 2;
  const d = isDown ? `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2 - 2}` : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 2} ${y2}`;
  const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
  const lag = edge.input ? edge.input.records : edge.sink?.rows;
  // A marker is in flight if the sender has recorded its version and the reader still awaits the marker.
  const markers = (waiting ?? []).filter((each) => isInFlight(each, edge));
  return html`<g class="edge">
    <path d=${d} marker-end="url(#tip)">${edge.name && html`<title>${edge.name}</title>`}</path>
    ${edge.name && !isDense && html`<text x=${isDown ? x + 8 : x} y=${isDown ? y + 4 : y - 7} text-anchor=${isDown ? "start" : "middle"}>${edge.name}</text>`}
    ${lag > 0 && html`<text class="behind" x=${isDown ? x - 8 : x} y=${isDown ? y + 4 : y + 16} text-anchor=${isDown ? "end" : "middle"}>${plural(lag, edge.input ? "record" : "row")} waiting</text>`}
    ${markers.map((each) => html`<g class="marker"><path d=${`M${x} ${y - 7}l7 7l-7 7l-7 -7z`} /><title>the marker of snapshot ${each.name} is in flight</title></g>`)}
  </g>`;
}

function isInFlight({ stages }, edge) {
  const sender = stages[edge.input?.upstream];
  const reader = stages[edge.to.replace(/^stage /, "")];
  return sender?.version != null && reader && (reader.version == null || reader.awaited.includes(edge.name));
}

function Node({ node, box, route, tables, isNow, waiting, isDim }) {
  const { x, y, w, h } = box;
  if (node.kind !== "stage") {
    const words = node.kind === "topic" ? "topic" : "sink";
    const most = Math.floor((w - 20) / LETTER.other);
    return html`<g class=${`node ${node.kind} ${isDim ? "dim" : ""}`}><rect x=${x} y=${y} width=${w} height=${h} rx=${h / 2} /><text x=${x + w / 2} y=${y + h / 2 + 4} text-anchor="middle">${short(node.name, most)}<title>${words} ${node.name}</title></text></g>`;
  }
  const { stage } = node;
  const table = Object.keys(tables).find((name) => tables[name] === stage.stage);
  const lines = [table ? `${stage.keys_exact ? "" : "at most "}${plural(stage.keys, "key")}` : "no table", stage.watermark_ms ? `watermark ${time(stage.watermark_ms)}` : `committed ${ago(stage.time_ms)}`];
  const recorded = waiting.filter((each) => each.stages[stage.stage]?.version != null);
  const body = html`<rect x=${x} y=${y} width=${w} height=${h} rx="8" />
    <text class="name" x=${x + 14} y=${y + 25}>${short(stage.stage, Math.floor((w - BESIDE_NAME) / LETTER.stage) + 1)}<title>${stage.stage}</title></text>
    <text class="version" x=${x + w - 12} y=${y + 25} text-anchor="end">v${stage.version}</text>
    ${lines.map((line, number) => html`<text class="line" x=${x + 14} y=${y + 46 + number * 17}>${line}</text>`)}
    ${isNow && html`<circle class=${stage.runner ? "runs" : "stopped"} cx=${x + w - 16} cy=${y + 42} r="4"><title>${stage.runner ? `runs: ${stage.runner}` : stage.runner == null ? "run state unknown" : "not running"}</title></circle>`}
    ${recorded.map((each, number) => html`<path class="recorded" d=${`M${x + w - 32 - number * 14} ${y + 36}l6 6l-6 6l-6 -6z`}><title>has recorded its part of snapshot ${each.name}</title></path>`)}`;
  return table
    ? html`<a class=${`node stage ${isDim ? "dim" : ""}`} href=${address({ ...route, view: "rows", names: [table] })} aria-label=${`${stage.stage} v${stage.version}, ${lines.join(", ")}: rows of ${table}`}>${body}</a>`
    : html`<g class=${`node stage ${isDim ? "dim" : ""}`}>${body}</g>`;
}

// Cut in the middle: names with a common prefix often differ at the end.
const short = (text, most) => (text.length > most ? `${text.slice(0, Math.ceil((most - 1) * 0.6))}…${text.slice(-Math.floor((most - 1) * 0.4))}` : text);
