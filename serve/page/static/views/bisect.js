// Bisect: the query for wrong rows, the evaluated moments, and the first bad commit with its records.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { events, path } from "../ask.js";
import { Command, Empty, Problem, Time } from "../parts.js";
import { address, navigate, versionOf } from "../route.js";
import { command, count, formatValue, offsets, plural, printable, ref, shortened, textOf } from "../words.js";

const MOST_KEYS = 20;

// The search's state belongs to the app, so that it survives a change of the view.
export function Bisect(props) {
  const { route, me, search, setSearch, snapshots, say, current } = props;
  const [where, setWhere] = useState(route.where ?? "");
  const [good, setGood] = useState(route.good ?? "");
  const control = useRef(null);
  useEffect(() => route.where && setWhere(route.where), [route.where]);
  const may = me.verbs.includes("bisect");
  const line = command("bisect", route.app, "--where", where || "SELECT key FROM table WHERE condition", ...(good ? ["--good", ref(route.app, good)] : []), ...(route.at ? ["--bad", ref(route.app, route.at)] : []));
  const start = async (event) => {
    event.preventDefault();
    control.current = new AbortController();
    let state = { isRunning: true, where, probes: [], found: search.found, answer: null, problem: null };
    setSearch(state);
    navigate({ ...route, where }, { replace: true });
    const change = (more) => setSearch((state = { ...state, ...more }));
    say("the search has started");
    const ends = { ...(good && { good: ref(route.app, good) }), ...(route.at && { bad: ref(route.app, route.at) }) };
    try {
      await events(path("apps", route.app, "bisect"), (kind, data) => {
        if (kind === "probe") {
          change({ probes: [...state.probes, { ...data, at: atOf(data.ref) }] });
          say(`${data.outcome}: ${data.ref}, ${plural(data.left, "evaluation")} left`);
        } else if (kind === "found") {
          change({ answer: data, found: [...state.found, markOf(data)] });
          say(`found: ${data.stage} v${data.first_bad.version}`);
        } else if (kind === "error") change({ problem: data });
      }, { body: { where, ...ends }, signal: control.current.signal });
    } catch (problem) {
      if (problem.name !== "AbortError") change({ problem });
    }
    change({ isRunning: false });
  };
  return html`<form class="search" onSubmit=${start}>
      <label for="wrong">What is wrong: a query that returns rows if something is wrong, and none if not</label>
      <textarea id="wrong" data-filter rows="2" value=${where} onInput=${(event) => setWhere(event.target.value)} spellcheck="false" placeholder="SELECT carrier FROM carriers WHERE delay > 100000"></textarea>
      <div class="row">
        <label>good at <select value=${good} onChange=${(event) => setGood(event.target.value)}><option value="">the beginning</option>${choices(snapshots, route, good).map((name) => html`<option value=${name} selected=${name === good}>${name}</option>`)}</select></label>
        <span>bad at <strong>${route.at || "now"}</strong>, the slider's moment</span>
        <span class="fill" />
        ${search.isRunning ? html`<button type="button" onClick=${() => control.current?.abort()}>Stop</button>` : may ? html`<button class="action" disabled=${!where.trim() || !current}>Start a bisect</button>` : ""}
      </div>
      ${!may && html`<p class="note">This token may not start a search. A search needs a token with the verb bisect. The command below needs access to the store instead.</p>`}
    </form>
    <${Command} line=${line} />
    <${Problem} problem=${search.problem} />
    ${search.answer && html`<${Found} answer=${search.answer} route=${route} where=${search.where} />`}
    <${Probes} search=${search} route=${route} />
    ${!search.answer && !search.probes.length && !search.isRunning && may && html`<${Empty}>A binary search over the commits between good and bad: about ten evaluations for a thousand commits.<//>`}`;
}

const choices = (snapshots, route, good) => [...new Set([...(snapshots?.snapshots ?? []).map((each) => each.name), route.against, good].filter(Boolean))];

// `flights/carriers@v42` is carriers@v42 on the slider.
const atOf = (of) => (of ?? "").replace(/^[^/@]+[/@]/, "");

const markOf = (answer) => ({ kind: "bisect", label: `${answer.stage} v${answer.first_bad.version}`, stage: answer.stage, version: answer.first_bad.version, time_ms: answer.first_bad.time_ms });

function Probes({ search, route }) {
  if (!search.probes.length && !search.isRunning) return null;
  return html`<h2>Evaluated moments${search.isRunning ? "" : `: ${count(search.probes.length)}`}</h2><ol class="probes">${search.probes.map((probe) => html`<li class=${probe.outcome}><span class="dot" aria-hidden="true"></span><span class="outcome">${probe.outcome}</span> <a href=${address({ ...route, view: "rows", at: probe.at })}>${probe.at || "the beginning"}</a></li>`)}</ol>
    ${search.isRunning && html`<p class="note">searching … ${search.probes.length ? `at most ${plural(search.probes.at(-1).left, "evaluation")} to come` : ""}</p>`}`;
}

function Found({ answer, route, where }) {
  const { first_bad: bad, last_good: good } = answer;
  const at = versionOf(answer.stage, bad.version);
  const rowsRoute = { ...route, view: "rows", names: [answer.stage], at, against: atOf(good?.ref), where: "", key: "" };
  const names = Object.keys(answer.keys[0]?.key ?? {});
  return html`<section class="found" aria-label="What was found">
    <h2>${answer.candidates?.length ? candidatesOf(answer.candidates) : html`<a data-row href=${address(rowsRoute)}>${answer.stage} v${bad.version}</a> is ${answer.bad_before ? "one of the commits at which it went bad" : "the first bad commit"}`}</h2>
    ${answer.bad_before && html`<p>it was bad before, at <a href=${address({ ...route, view: "rows", at: atOf(answer.bad_before), against: "" })}>${atOf(answer.bad_before)}</a></p>`}
    ${answer.assumes_once && !answer.candidates?.length && html`<p class="note">a binary search assumes that the history turned from good to bad once; not every commit was evaluated</p>`}
    <p>committed <${Time} ms=${bad.time_ms} />; the last good one is ${good?.ref ? html`<a href=${address({ ...route, view: "rows", at: atOf(good.ref), against: "" })}>${atOf(good.ref)}</a>` : "before the first"}.</p>
    <dl class="lineage"><div><dt>offsets it read</dt><dd>${offsets(answer.windows) || "no record"}</dd></div>
      <div><dt>offsets of users' topics</dt><dd class="sources">${offsets(answer.source_windows) || "no record"}</dd></div></dl>
    <${Cause} cause=${answer.cause} />
    <${Record} cause=${answer.cause} record=${answer.record} route=${route} where=${where} />
    ${answer.keys.length > 0 && html`<h3>${plural(answer.keys.length, "key")} turned bad</h3>
      <div class="scroll" tabindex="0" role="region" aria-label="Keys that turned bad"><table class="grid"><thead><tr>${names.map((name) => html`<th scope="col">${name}</th>`)}<th scope="col">before</th><th scope="col">after</th></tr></thead>
      <tbody>${answer.keys.slice(0, MOST_KEYS).map((each) => html`<tr>${names.map((name) => html`<td><a href=${address({ ...route, view: "key", names: [answer.stage, names.length > 1 ? JSON.stringify(Object.values(each.key)) : formatValue(each.key[name])], at })}>${shortened(formatValue(each.key[name]))}</a></td>`)}<td>${sideOf(each.before)}</td><td>${sideOf(each.after)}</td></tr>`)}</tbody></table></div>`}
    ${answer.keys.length > MOST_KEYS && html`<p class="note">and ${count(answer.keys.length - MOST_KEYS)} more</p>`}
  </section>`;
}

// The candidate versions, a range for each stage.
function candidatesOf(ranges) {
  const commits = ranges.reduce((sum, { first, last }) => sum + last - first + 1, 0);
  return `One of ${plural(commits, "commit")}: ${ranges.map(({ stage, first, last }) => (first === last ? `${stage} v${first}` : `${stage} v${first} to v${last}`)).join(", ")}`;
}

const sideOf = (row) => (row ? Object.entries(row).map(([name, of]) => html`<span class="pair"><span class="note">${printable(name)}</span> ${shortened(formatValue(of))}</span>`) : html`<span class="note">no row</span>`);

// True if a cause's sentence already contains a value of its evidence.
function isSaid({ sentence, evidence }, name, of) {
  if (name === "stage" || name === "version") return sentence.includes(`${evidence.stage}@v${evidence.version}`);
  return of.checksum ? sentence.includes(`${of.path} (xxh3_128 ${of.checksum})`) : sentence.split(/[,;:]?\s+/).includes(String(of));
}

// The cause of the bad commit, and its evidence, unless that is a record, which is shown below.
function Cause({ cause }) {
  if (!cause || cause.class === "unknown") return null;
  const shown = Object.entries(cause.evidence).filter(([name, of]) => of != null && !["alone", "needs", "num_keys", "how", "add"].includes(name) && !isSaid(cause, name, of));
  return html`<h3>${cause.sentence}</h3>
    ${cause.class !== "record" && shown.length > 0 && html`<dl class="lineage">${shown.map(([name, of]) => html`<div><dt>${printable(name.replaceAll("_", " "))}</dt><dd>${shortened(formatValue(of), 300)}</dd></div>`)}</dl>`}
    ${cause.records.length > 1 && html`<ol class="hops">${cause.records.slice(0, MOST_KEYS).map((each) => html`<li><code>${each}</code></li>`)}</ol>`}`;
}

// The record and its path through the stages; without a program on the server, the command that finds the record.
function Record({ cause, record, route, where }) {
  if (!record?.address && cause && cause.class !== "unknown") return null;
  if (!record?.address) {
    return html`<p class="note">${record?.reason ? `The record could not be determined: ${record.reason}` : "To find the record among these, replay the batch with the program's file (needs Spark):"}</p>
      <${Command} label="the record" line=${command("bisect", route.app, "--where", where, "--code", "PROGRAM.py")} />`;
  }
  const parts = [["key", record.key], ...record.headers.map((each) => [`header ${each.name}`, each.value]), ["value", record.value]];
  return html`<h3>the record <code>${record.address}</code></h3>
    <dl class="lineage"><div><dt>sent</dt><dd><${Time} ms=${record.time_ms} /></dd></div>
      ${parts.map(([name, of]) => html`<div><dt>${name}</dt><dd>${shortened(textOf(of), 2000)}</dd></div>`)}</dl>
    ${record.hops.length > 0 && html`<h3>path through the stages</h3><ol class="hops">${record.hops.map((hop) => html`<li><a href=${address({ ...route, view: "rows", names: [], at: versionOf(hop.stage, hop.version) })}>${hop.stage} v${hop.version}</a> turned bad with <code>${hop.record}</code>, one of ${plural(hop.records, "record")}</li>`)}</ol>`}`;
}
