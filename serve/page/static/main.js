// The page: header, token form, keyboard shortcuts, and the current app.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { hasToken, onToken, request, setToken } from "./ask.js";
import { App } from "./app.js";
import { address, navigate, useRoute } from "./route.js";
import { Apps } from "./views/apps.js";

const KEYS = [
  ["← →", "previous commit, next commit"],
  ["Page ↑ ↓", "ten commits at a time"],
  ["Home End", "the first commit; now"],
  ["+ −", "zoom in, zoom out"],
  ["m  M", "next annotation, previous annotation"],
  ["c", "compare with the previous version, or stop comparing"],
  ["t", "rows of a table; again: of the next table"],
  ["↑ ↓", "move between rows; Enter opens a key"],
  ["/", "go to the filter"],
  ["h", "the history of the row's key"],
  ["b", "bisect"],
  ["g  l  r  e", "graph, log, rejected and late records, cost"],
  ["a", "all apps"],
  ["?", "these keys"],
];

const THEMES = ["auto", "light", "dark"];

function useTheme() {
  const [theme, set] = useState(() => (THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto"));
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  return [theme, () => set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

function Page() {
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  const [token, setChanged] = useState(0);
  const [isNeeded, setNeeded] = useState(false);
  const [me, setMe] = useState({ name: "", verbs: [] });
  const [said, say] = useState("");
  const keys = useRef({});
  const help = useRef(null);

  useEffect(() => onToken((what) => (what === "needed" ? setNeeded(true) : (setNeeded(false), setChanged((old) => old + 1)))), []);
  useEffect(() => {
    request("/me").then(setMe, () => setMe({ name: "", verbs: ["read", "sql"] }));
  }, [token]);
  useEffect(() => {
    const pressed = (event) => onKey(event, keys.current, help.current);
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);

  return html`
    <a class="skip" href="#view" onClick=${(event) => (event.preventDefault(), document.getElementById("view")?.focus())}>Skip to the view</a>
    <header>
      <a class="home" href="#/">slackwater</a>
      ${route.app && html`<span class="crumb" aria-hidden="true">/</span><a class="crumb" href=${address({ app: route.app, at: route.at })}>${route.app}</a>`}
      <span class="fill" />
      ${me.name && html`<span class="note">as ${me.name}</span>`}
      ${(hasToken() || isNeeded) && html`<button type="button" class="quiet" onClick=${() => setNeeded(!isNeeded)} aria-expanded=${isNeeded}>token</button>`}
      <button type="button" class="quiet" onClick=${nextTheme} aria-label=${`Colours: ${theme}`}>${theme}</button>
      <button type="button" class="quiet" onClick=${() => help.current.showModal()} aria-label="Keys">?</button>
    </header>
    ${isNeeded && html`<${Token} />`}
    ${route.app ? html`<${App} key=${route.app} route=${route} me=${me} keys=${keys} token=${token} say=${say} />` : html`<${Apps} token=${token} />`}
    <div class="unseen" role="status" aria-live="polite">${said}</div>
    <dialog ref=${help} aria-labelledby="keys">
      <h2 id="keys">Keys</h2>
      <dl>${KEYS.map(([key, what]) => html`<div><dt>${key.split(" ").filter(Boolean).map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
      <form method="dialog"><button class="action">Close</button></form>
    </dialog>`;
}

function Token() {
  const [text, setText] = useState("");
  return html`<form class="token" aria-label="Authentication" onSubmit=${(event) => (event.preventDefault(), setToken(text))}>
    <label>Token <input type="password" autocomplete="off" value=${text} onInput=${(event) => setText(event.target.value)} autofocus /></label>
    <button class="action" disabled=${!text}>Use token</button>
    ${hasToken() && html`<button type="button" class="quiet" onClick=${() => setToken("")}>Remove it</button>`}
    <span class="note">Kept until this tab is closed. Create one with <code>slackwater token add NAME --app APP</code>.</span>
  </form>`;
}

// Moves the focus between the key links of the shown rows.
function toRow(by) {
  const links = [...document.querySelectorAll("a[data-row]")];
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
  return links.length > 0;
}

function onKey(event, { slider, route, tables, compare }, help) {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
  if (target.closest("input, textarea, select")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const to = (view, names = []) => route?.app && navigate({ ...route, view, names, key: "", where: "", order: "" });
  const nextTable = () => {
    const at = route.view === "rows" ? tables.indexOf(route.names[0] ?? tables[0]) + 1 : 0;
    to("rows", [tables[at % tables.length]]);
  };
  // Keep the default scrolling of these keys in scrollable parts and on the page.
  if (/^Arrow(Left|Right)$/.test(event.key) && target.matches(".scroll")) return;
  if (/^(Page|Home|End)/.test(event.key) && target.role !== "slider") return;
  const does = {
    "?": () => help.showModal(),
    a: () => navigate({}),
    ArrowLeft: () => slider?.current?.move(-1),
    ArrowRight: () => slider?.current?.move(1),
    PageUp: () => slider?.current?.move(-10),
    PageDown: () => slider?.current?.move(10),
    Home: () => slider?.current?.to(0),
    End: () => route?.app && navigate({ ...route, at: "" }, { replace: true }),
    "+": () => slider?.current?.zoomIn(),
    "=": () => slider?.current?.zoomIn(),
    "-": () => slider?.current?.zoomOut(),
    m: () => slider?.current?.toAnnotation(1),
    M: () => slider?.current?.toAnnotation(-1),
    c: () => compare?.(),
    t: () => tables?.length && nextTable(),
    "/": () => document.querySelector("[data-filter]")?.focus(),
    h: () => (target.closest("a[data-row]") ?? document.querySelector("a[data-row]"))?.click(),
    b: () => to("bisect"),
    g: () => to("stages"),
    l: () => to("log"),
    r: () => to("rejected"),
    e: () => to("cost"),
    ArrowDown: () => toRow(1),
    ArrowUp: () => toRow(-1),
  }[event.key];
  if (does && does() !== false) event.preventDefault();
}

render(html`<${Page} />`, document.getElementById("page"));
