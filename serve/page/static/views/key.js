// The history of one key: its columns over time, and each change with the offsets that the version read.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { path, query } from "../ask.js";
import { Command, Empty, Problem, Reading, Time, useRequest } from "../parts.js";
import { address, navigate, versionOf } from "../route.js";
import { command, formatValue, identifier, literal, numberOf, offsets, plural, printable, shortened, tick } from "../words.js";
import { Why } from "./why.js";

const LIMIT = 500;
const HEIGHT = 220;
const MOST_PAIRS = 12;
const INKS = ["--ink-1", "--ink-2", "--ink-3", "--ink-4", "--ink-5"];

export function Key({ route, live, current, me }) {
  const [table, key = ""] = route.names;
  const asked = useRequest(table ? query(path("apps", route.app, "tables", table, "history"), { key, limit: LIMIT }) : "", live);
  const about = useRequest(table ? path("apps", route.app, "at", "now") : "", route.app);
  const columns = about.data?.tables.find((each) => each.table === table)?.columns ?? [];
  const types = useMemo(() => Object.fromEntries(columns.map((each) => [each.name, each.type])), [about.data, table]);
  const changes = asked.data?.changes ?? [];
  return html`<div class="tools"><h2>${table} <span class="keyname">${shortened(key)}</span></h2>
      <a href=${address({ ...route, view: "rows", names: [table], key: "" })}>all rows</a>
      <a href=${address({ ...route, view: "rows", names: [table], key })}>the key's row at this moment</a>
      <a href=${address({ ...route, view: "bisect", where: suggested(asked.data, table, types) })}>bisect</a></div>
    <${Problem} problem=${asked.problem} />
    ${asked.isBusy && !asked.data && html`<${Reading} />`}
    ${asked.data && !changes.length && html`<${Empty}>No stored version has a row with this key.<//>`}
    ${changes.length > 0 && html`
      <${Plot} changes=${changes} types=${types} route=${route} />
      ${current && html`<p class="note">${plural(changes.length, "change")}${changes.length === LIMIT ? ", the newest" : ""}${asked.data.whole_from ? `; older versions than v${asked.data.whole_from} were thinned out` : ""}</p>`}
      <${Why} route=${route} table=${table} name=${key} me=${me} />
      <${Changes} changes=${changes} route=${route} />`}
    <${Command} line=${command("history", route.app, table ?? "", key)} />`;
}

// Suggests a query for a bisect: a threshold for the column with the largest step, relative to its usual steps. A counter
// that grows with each batch has a smaller jump than a sum that runs away. If no number changed, the query tests the column
// that changed last.
export function suggested(data, table, types) {
  const rows = (data?.changes ?? []).map((change) => change.after).filter(Boolean).reverse();
  const newest = rows.at(-1);
  if (!newest) return "";
  const keys = Object.entries(data.key).map(([name, of]) => (of === null ? `${identifier(name)} IS NULL` : `${identifier(name)} = ${literal(types[name], of)}`));
  const jumps = columnsOf(data.changes, types).map((name) => largestStep(name, rows.map((row) => numberOf(types[name], row[name])).filter((of) => of != null)));
  const jump = jumps.reduce((most, each) => (each.times > (most?.times ?? -1) ? each : most), null);
  const changed = Object.keys(newest).find((name) => rows.length > 1 && formatValue(rows.at(-2)[name]) !== formatValue(newest[name]) && typeof newest[name] !== "object");
  const wrong = jump ? `${identifier(jump.name)} ${jump.sign} ${jump.limit}` : changed ? `${identifier(changed)} = ${literal(types[changed], newest[changed])}` : "";
  if (!wrong) return "";
  return `SELECT ${Object.keys(data.key).map(identifier).join(", ")} FROM ${identifier(table)} WHERE ${[...keys, wrong].join(" AND ")}`;
}

// The first large step of a column (at least a quarter of its largest), as a multiple, `times`, of its usual step. The
// limit lies between the values before and after that step.
function largestStep(name, values) {
  const steps = values.slice(1).map((of, at) => of - values[at]);
  const sizes = steps.map(Math.abs);
  const largest = Math.max(0, ...sizes);
  if (!largest) return { name, times: 0, sign: ">=", limit: values.at(-1) };
  const first = sizes.findIndex((size) => size >= largest / 4);
  const usual = sizes.slice(0, first).filter(Boolean).sort((a, b) => a - b);
  const times = largest / (usual[usual.length >> 1] ?? largest);
  const middle = (values[first] + values[first + 1]) / 2;
  return { name, times, sign: steps[first] > 0 ? ">" : "<", limit: !values.every(Number.isInteger) ? middle : steps[first] > 0 ? Math.floor(middle) : Math.ceil(middle) };
}

// uPlot, loaded on first use; it is not an ES module.
let plots;
const loaded = () =>
  (plots ??= new Promise((resolve, reject) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/page/vendor/uplot.css" });
    const script = Object.assign(document.createElement("script"), { src: "/page/vendor/uplot.js", onload: () => resolve(globalThis.uPlot), onerror: reject });
    document.head.append(sheet, script);
  }));

function columnsOf(changes, types) {
  const names = new Set(changes.flatMap((change) => Object.keys(change.after ?? change.before ?? {})));
  return [...names].filter((name) => changes.some((change) => numberOf(types[name], change.after?.[name]) != null));
}

// Step lines: a value holds until the next change.
function Plot({ changes, types, route }) {
  const names = useMemo(() => columnsOf(changes, types), [changes, types]);
  const [hidden, setHidden] = useState(() => new Set(names.slice(INKS.length))); // as many columns as there are colours
  const [at, setAt] = useState(null);
  const box = useRef(null);
  const oldest = useMemo(() => [...changes].reverse(), [changes]);
  const shown = names.filter((name) => !hidden.has(name));
  useEffect(() => {
    if (!shown.length) return undefined;
    let plot;
    let isGone = false;
    const data = [oldest.map((change) => change.time_ms / 1000), ...shown.map((name) => oldest.map((change) => numberOf(types[name], change.after?.[name])))];
    const draw = (uPlot) => {
      if (isGone || !box.current) return;
      const style = getComputedStyle(document.documentElement);
      const ink = (name) => style.getPropertyValue(name).trim();
      const probe = document.createElement("span");
      box.current.append(probe);
      const colour = (name) => ((probe.style.color = ink(name)), getComputedStyle(probe).color);
      const [grid, words] = [colour("--line"), colour("--muted")];
      const axis = { stroke: words, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui" };
      const long = oldest.at(-1).time_ms - oldest[0].time_ms;
      const times = (_plot, splits) => splits.map((s) => tick(s * 1000, long));
      // Compute the axis width from the labels: a fixed width would cut 1,000,000,000.
      const pen = document.createElement("canvas").getContext("2d");
      pen.font = axis.font;
      const wide = (_plot, labels) => Math.ceil(Math.max(40, ...(labels ?? []).map((label) => pen.measureText(label ?? "").width + 24)));
      const side = (scale) => ({ ...axis, scale, size: wide });
      const options = {
        width: box.current.clientWidth, height: HEIGHT, cursor: { points: { size: 6 } }, legend: { show: false },
        hooks: { setCursor: [(of) => setAt(of.cursor.idx ?? null)] },
        scales: { ...Object.fromEntries(shown.map((name, number) => [`y${number > 1 ? 1 : number}`, {}])), ...(long ? {} : { x: { range: () => [oldest[0].time_ms / 1000 - 30, oldest[0].time_ms / 1000 + 30] } }) },
        series: [{}, ...shown.map((name, number) => ({ label: name, scale: `y${number > 1 ? 1 : number}`, stroke: colour(INKS[names.indexOf(name) % INKS.length]), width: 1.75, paths: uPlot.paths.stepped({ align: 1 }), points: { show: oldest.length < 80, size: 4 } }))],
        axes: [{ ...axis, values: times }, side("y0"), ...(shown.length > 1 ? [{ ...side("y1"), side: 1, grid: { show: false } }] : [])],
      };
      probe.remove();
      plot?.destroy();
      plot = new uPlot(options, data, box.current);
      plot.over.addEventListener("click", () => {
        const change = oldest[plot.cursor.idx];
        if (change) navigate({ ...route, at: versionOf(change.stage, change.version) });
      });
    };
    loaded().then((uPlot) => {
      draw(uPlot);
      if (!isGone) dark.addEventListener("change", redraw);
    });
    const redraw = () => loaded().then(draw);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const seen = new ResizeObserver(() => plot?.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    seen.observe(box.current);
    const theme = new MutationObserver(redraw);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      isGone = true;
      dark.removeEventListener("change", redraw);
      seen.disconnect();
      theme.disconnect();
      plot?.destroy();
    };
  }, [changes, types, shown.join(" ")]);
  const toggle = (name) => setHidden((old) => (old.has(name) ? new Set([...old].filter((each) => each !== name)) : new Set([...old, name])));
  if (!names.length) return null;
  const label = (name, number) => html`<label><input type="checkbox" checked=${!hidden.has(name)} onChange=${() => toggle(name)} /><span class="ink" style=${{ background: `var(${INKS[number % INKS.length]})` }}></span>${printable(name)}${oldest[at] && !hidden.has(name) ? html` <strong>${formatValue(oldest[at].after?.[name])}</strong>` : ""}</label>`;
  const most = INKS.length * 2;
  return html`<figure class="plot">
    <div ref=${box} role="img" aria-label=${`${shown.join(", ")} over time; the table below has each change`}></div>
    <figcaption>${names.slice(0, most).map(label)}${names.length > most && html`<details><summary>${plural(names.length - most, "more column")}</summary>${names.slice(most).map((name, at_) => label(name, most + at_))}</details>`}${oldest[at] && html`<span class="note">v${oldest[at].version}, <${Time} ms=${oldest[at].time_ms} /></span>`}</figcaption>
  </figure>`;
}

function Changes({ changes, route }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Changes">
    <table class="grid"><thead><tr><th scope="col">committed</th><th scope="col">version</th><th scope="col">change</th><th scope="col">before</th><th scope="col">after</th><th scope="col">offsets read</th></tr></thead>
    <tbody>${changes.map((change) => html`<${Change} key=${change.version} change=${change} route=${route} />`)}</tbody></table>
  </div>`;
}

function Change({ change, route }) {
  const { stage, version, before, after } = change;
  const names = Object.keys(after ?? before ?? {}).filter((name) => !before || !after || formatValue(before[name]) !== formatValue(after[name]));
  const [isWhole, setWhole] = useState(names.length <= MOST_PAIRS);
  const side = (row) => (row ? (isWhole ? names : names.slice(0, MOST_PAIRS)).map((name) => html`<span class="pair"><span class="note">${printable(name)}</span> ${shortened(formatValue(row[name]))}</span> `) : html`<span class="note">no row</span>`);
  const rest = !isWhole && html`<button type="button" class="quiet" onClick=${() => setWhole(true)} aria-label=${`All columns of v${version}`}>${plural(names.length - MOST_PAIRS, "more column")}</button>`;
  const what = change.expired ? "expired" : change.inherited ? `${change.change}, ${change.inherited}` : change.change;
  const to = { ...route, view: "rows", names: [route.names[0]], at: versionOf(stage, version), against: version > 1 ? versionOf(stage, version - 1) : "" };
  return html`<tr>
    <td><${Time} ms=${change.time_ms} /></td>
    <td><a data-row href=${address(to)} title="what this version changed">v${version}</a></td>
    <td>${what}${change.gap ? ", by several versions that were thinned out" : ""}</td><td>${side(before)}</td><td>${side(after)}${rest}</td>
    <td><${InputOffsets} app=${route.app} stage=${stage} version=${version} windows=${change.windows} /></td>
  </tr>`;
}

// The offsets that a version read, and on demand the offsets of users' topics from which they derive.
export function InputOffsets({ app, stage, version, windows }) {
  const [isOpen, setOpen] = useState(false);
  const found = useRequest(isOpen ? query(path("apps", app, "lineage"), { stage, version }) : "");
  return html`<span class="offsets">${offsets(windows) || "–"}</span>
    ${windows?.length > 0 && html` <button type="button" class="quiet" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)} aria-label=${`Input records of ${stage} v${version}`}>records</button>`}
    ${isOpen && found.data && html`<div class="way">${found.data.sources.map((one) => html`<div><strong>${one.topic}[${one.partition}]</strong> ${one.start} to ${one.end}</div>`)}${!found.data.sources.length && "no record of a topic"}</div>`}
    ${isOpen && found.problem && html`<div class="warn">${found.problem.message}</div>`}`;
}
