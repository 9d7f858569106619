// One app: the current moment, the moment it is compared with, and the current view.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { events, path, query, request } from "./ask.js";
import { address, moment, navigate, previousVersion } from "./route.js";
import { Empty, Problem, Reading, Time, useRequest } from "./parts.js";
import { Timeline } from "./timeline.js";
import { Bisect } from "./views/bisect.js";
import { Key } from "./views/key.js";
import { Cost, Log, Rejected } from "./views/others.js";
import { Rows } from "./views/rows.js";
import { Stages } from "./views/stages.js";
import { ago, count, plural, span } from "./words.js";

const VIEWS = { stages: Stages, rows: Rows, key: Key, bisect: Bisect, rejected: Rejected, log: Log, cost: Cost };
const TABS = [["stages", "Stages"], ["rows", "Rows"], ["bisect", "Bisect"], ["rejected", "Rejected"], ["log", "Log"], ["cost", "Cost"]];
const EVERY_MS = 2000;

// Returns a counter that increases with the app's commits, at most every two seconds, and whether the event stream is open.
function useCommits(app, onToken) {
  const [state, set] = useState({ tick: 0, isLive: false });
  useEffect(() => {
    const control = new AbortController();
    let due = 0;
    let last = performance.now();
    const next = () => {
      due = 0;
      last = performance.now();
      set((old) => ({ tick: old.tick + 1, isLive: true }));
    };
    const heard = () => {
      due ||= setTimeout(next, Math.max(0, last + EVERY_MS - performance.now()));
    };
    // Close the connection while the page is hidden: a browser allows six per server for all tabs.
    let shown = new AbortController();
    const follow = async () => {
      while (!control.signal.aborted && !document.hidden) {
        shown = new AbortController();
        try {
          set((old) => ({ ...old, isLive: true }));
          await events(path("apps", app, "commits"), heard, { signal: shown.signal });
        } catch (problem) {
          if (problem.name === "AbortError") return;
          if ([401, 403, 404].includes(problem.status)) return void set((old) => ({ ...old, isLive: false }));
        }
        set((old) => ({ ...old, isLive: false }));
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    };
    const seen = () => (document.hidden ? shown.abort() : follow());
    document.addEventListener("visibilitychange", seen);
    follow();
    return () => {
      document.removeEventListener("visibilitychange", seen);
      control.abort();
      shown.abort();
      clearTimeout(due);
    };
  }, [app, onToken]);
  return state;
}

export function App({ route, me, keys, token, say }) {
  const { app, view } = route;
  const { tick, isLive } = useCommits(app, token);
  const at = moment(route.at);
  const isNow = at.ref === "now";
  const live = tick + token * 1000;
  const asked = useRequest(query(path("apps", app, "at", at.ref, "stages"), { stage: at.stage }), isNow ? live : token);
  // A token for some tables may not read the stages: show only its tables.
  const isPart = asked.problem?.status === 403;
  const part = useRequest(isPart ? query(path("apps", app, "at", at.ref), { stage: at.stage }) : "", isNow ? live : token);
  const current = isPart ? { ...part, data: part.data && momentFromTables(part.data) } : asked;
  const other = moment(route.against);
  const comparedWith = useRequest(route.against ? query(path("apps", app, "at", other.ref), { stage: other.stage }) : "", token);
  // Each snapshot costs a read of the store: ask again only when a snapshot starts or ends.
  const pendingSnapshots = (current.data?.waiting ?? []).map((each) => each.name).join(" ");
  const snapshotsAnswer = useRequest(path("apps", app, "snapshots"), `${token} ${pendingSnapshots}`);
  const isNew = isNow && asked.problem?.status === 404 && snapshotsAnswer.data; // the app exists, since its snapshots can be read
  const [search, setSearch] = useState({ probes: [], found: [] });
  const slider = useRef(null);
  const newest = useRef(0);
  const runs = useRef(null);
  if (isNow && current.data) {
    newest.current = current.data.time_ms;
    runs.current = isPart ? null : current.data.stages.filter((stage) => !stage.retired).map((stage) => stage.runner);
  }

  const move = (to) => navigate({ ...route, at: to }, { replace: true });
  const earlier = previousVersion(route.at || lastCommit(current.data));
  const compare = () => navigate({ ...route, against: route.against ? "" : earlier });
  const tables = tablesOf(current.data);
  keys.current = { slider, route, tables, compare };
  useEffect(() => {
    document.title = `${app} · slackwater`;
  }, [app]);
  const words = current.data && `${isNow ? "now" : (route.at ?? "")}, ${ago(current.data.time_ms)}`;
  useEffect(() => words && say(words), [route.at, current.data?.time_ms]);

  const View = VIEWS[view] ?? Stages;
  const shared = { route, at, isNow, live, current: current.data, isPart, tables, me, say, earlier, comparedWith: comparedWith.data, search, setSearch, snapshots: snapshotsAnswer.data };
  return html`<main>
    <div class="heading">
      <h1>${app}</h1>
      <${Live} isConnected=${isLive} runs=${runs.current} />
      ${current.data && !isPart && html`<span class="note">${plural(current.data.stages.length, "stage")}</span>`}
      <${TakeSnapshot} app=${app} me=${me} say=${say} waiting=${current.data?.waiting ?? []} />
    </div>
    <div class="band">
      <${Timeline} app=${app} at=${route.at} atMs=${current.data?.time_ms} against=${route.against} againstMs=${comparedWith.data?.time_ms}
        found=${search.found} probes=${search.probes} live=${live} control=${slider} onMove=${move} />
      <${MomentBar} ...${shared} newest=${newest.current} problem=${current.problem} />
    </div>
    <nav aria-label="Views"><ul class="tabs">${TABS.map(([name, label]) => {
      const isCurrent = view === name || (name === "rows" && view === "key");
      return html`<li><a href=${address({ ...route, view: name, names: name === "rows" ? route.names.slice(0, 1) : [], key: "", where: "", order: "" })} aria-current=${isCurrent ? "page" : undefined}>${label}</a></li>`;
    })}</ul></nav>
    ${isNew ? html`<${Empty}>This app has no version yet; <code>slackwater run FILE</code> starts it.<//>` : html`<${Problem} problem=${current.problem} />`}
    <div class="view" id="view" tabindex="-1"><${View} key=${view} ...${shared} />${current.isBusy && !current.data && html`<${Reading} />`}</div>
  </main>`;
}

// Whether the app runs, and whether the page receives its commits. `runs` has the runner of each stage, "" for none and
// null if unknown; `runs` is null before the first answer, and if the token does not allow it.
function Live({ isConnected, runs }) {
  const running = runs?.filter(Boolean).length ?? 0;
  const [words, title] = !isConnected
    ? ["not connected", "the server's stream of commits is closed; the page may be out of date"]
    : running
      ? [running < runs.length ? `${count(running)} of ${plural(runs.length, "stage")} running` : "running", "new commits are shown as they come"]
      : runs?.length && runs.every((runner) => runner === "")
        ? ["not running", "no stage has a runner; the page shows new commits when one starts"]
        : ["connected", "new commits are shown as they come; whether the app runs is unknown here"];
  return html`<span class=${`live ${isConnected && running ? "on" : ""}`} title=${title}>${words}</span>`;
}

// The tables of a moment: those with rows first, then side tables, then empty ones.
function tablesOf(current) {
  const rank = (table) => {
    const stage = current.stages.find((each) => each.stage === table);
    return stage?.keys ? 0 : stage ? 2 : 1;
  };
  return Object.keys(current?.tables ?? {}).sort((a, b) => rank(a) - rank(b));
}

// The current moment, and the moment it is compared with.
function MomentBar({ route, current, comparedWith, snapshots, newest, isNow, earlier }) {
  const names = (snapshots?.snapshots ?? []).map((each) => each.name);
  const others = [["", "nothing"], ...(earlier ? [[earlier, `the previous version (${earlier})`]] : []), ...names.map((name) => [name, `snapshot ${name}`])];
  if (route.against && !others.some(([value]) => value === route.against)) others.push([route.against, route.against]);
  if (route.at && route.against !== route.at) others.push([route.at, `this moment (${route.at})`]);
  return html`<div class="moment">
    <span class="which"><strong>${isNow ? "now" : route.at}</strong>${current && html`<span> committed <${Time} ms=${current.time_ms} />, ${ago(current.time_ms)}</span>`}${!isNow && current && newest > current.time_ms ? html`<span class="note"> ${span(newest - current.time_ms)} before the newest</span>` : ""}</span>
    ${current?.thinned_out && html`<span class="warn">the history was thinned out; this is the nearest remaining moment</span>`}
    <label class="compare">compared with <select value=${route.against ?? ""} onChange=${(event) => navigate({ ...route, against: event.target.value })}>
      ${others.map(([value, label]) => html`<option value=${value} selected=${value === (route.against ?? "")}>${label}</option>`)}
    </select></label>
    ${route.against && comparedWith && html`<span class="note">committed ${ago(comparedWith.time_ms)}</span>`}
  </div>`;
}

// A moment as far as it is known from its tables alone.
function momentFromTables({ tables, versions, time_ms }) {
  return { stages: [], waiting: [], versions, time_ms, tables: Object.fromEntries(tables.map(({ table }) => [table, table])) };
}

function lastCommit(current) {
  const last = current && [...current.stages].sort((a, b) => b.time_ms - a.time_ms)[0];
  return last ? `${last.stage}@v${last.version}` : "";
}

function TakeSnapshot({ app, me, say, waiting }) {
  const [name, setName] = useState(null);
  const [problem, setProblem] = useState(null);
  if (!me.verbs.includes("snapshot")) return null;
  const take = async (event) => {
    event.preventDefault();
    try {
      await request(path("apps", app, "snapshots"), { body: { name } });
      say(`snapshot ${name} requested`);
      setName(null);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  if (name === null) return html`<button type="button" class="action" onClick=${() => setName("")}>Take a snapshot</button>`;
  return html`<form class="inline" onSubmit=${take}>
    <label>Name <input value=${name} onInput=${(event) => setName(event.target.value)} required autofocus spellcheck="false" /></label>
    <button class="action" disabled=${!name}>Take it</button><button type="button" class="quiet" onClick=${() => setName(null)}>Cancel</button>
    ${problem && html`<span class="warn" role="alert">${problem.message}</span>`}
  </form>`;
}
