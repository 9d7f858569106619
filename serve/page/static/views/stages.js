// The stages at the moment, as a graph and as a table; sinks.

import { html, useState } from "../vendor/preact-htm.js";
import { Command, Empty, Grid, Time } from "../parts.js";
import { command, count, plural, ref, size } from "../words.js";
import { Graph } from "./graph.js";

const MANY = 8;

export function Stages({ route, current, isNow, isPart, tables }) {
  const [text, setText] = useState("");
  if (!current) return null;
  const app = route.app;
  if (isPart) return html`<${Empty}>This token may not see the stages of this app, only rows of ${tables.join(", ")}: see Rows.<//><${Command} line=${command("query", ref(app, route.at), "SHOW TABLES")} />`;
  const isWanted = (stage) => stage.stage.toLowerCase().includes(text.trim().toLowerCase());
  const stages = current.stages.filter(isWanted);
  const sinks = stages.flatMap((stage) => stage.sinks.map((sink) => [stage, sink]));
  const line = isNow ? command("status", app) : command("verify", ref(app, route.at));
  return html`
    ${current.stages.length > MANY && html`<form class="tools find" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Find a stage <input type="search" data-filter value=${text} onInput=${(event) => setText(event.target.value)} spellcheck="false" autocapitalize="off" autocomplete="off" /></label>
      ${text && html`<span class="note" role="status">${count(stages.length)} of ${plural(current.stages.length, "stage")}</span>`}</form>`}
    <${Graph} current=${current} route=${route} isNow=${isNow} wanted=${text.trim() ? new Set(stages.map((stage) => stage.stage)) : null} />
    ${current.waiting.length > 0 && html`<${Waiting} waiting=${current.waiting} />`}
    <${Grid} label="Stages" empty=${text ? "No stage name contains this text." : "No stage has committed yet."} columns=${[["stage"], ["version", "right"], ["committed"], ["rows in last batch", "right", "read by the newest version"], ["keys", "right", "at most: a key counts once for each file that has it, until files are merged"], ["SSTs", "right", "files of the table"], ["size", "right"], ["lag", "", "records not read yet, by input"], ["watermark"], ["late", "right", "records that no table counts, because they came after the watermark"], ["rejected", "right", "records that the stage could not read"]]}
      rows=${stages.map((stage) => [stage.stage, `v${stage.version}`, html`<${Time} ms=${stage.time_ms} />`, count(stage.rows), stage.keys == null ? "–" : `${stage.keys_exact ? "" : "≤ "}${count(stage.keys)}`, count(stage.ssts), size(stage.bytes), lagText(stage), html`<${Time} ms=${stage.watermark_ms} />`, count(stage.late), count(stage.rejected)])} />
    ${sinks.length > 0 && html`<h2>Sinks</h2><${Grid} label="Sinks" empty="" columns=${[["sink"], ["stage"], ["rows sent", "right", "since the stage began"], ["published up to", "right"], ["not published yet"]]}
      rows=${sinks.map(([stage, sink]) => [sink.name, stage.stage, count(sink.sent), !isNow ? "only shown at now" : sink.place == null ? "–" : `v${sink.place}`, !isNow ? "–" : sink.rows ? `${plural(sink.rows, "row")}, ${plural(sink.versions, "version")}` : "0"])} />`}
    <${Command} line=${line} />`;
}

function lagText(stage) {
  if (stage.retired) return stage.called ? `renamed to ${stage.called}` : "retired: no longer in the program";
  return stage.inputs.map((input) => `${input.name}: ${input.records == null ? "not known" : count(input.records)}`).join("; ");
}

function Waiting({ waiting }) {
  return waiting.map(({ name, stages }) => {
    const all = Object.entries(stages);
    const done = all.filter(([, answer]) => answer.version != null && !answer.awaited.length);
    return html`<p class="note">snapshot <strong>${name}</strong> is being taken: ${done.length} of ${all.length} stages are done${all.length > done.length ? `; it waits for ${all.filter((each) => !done.includes(each)).map(([stage]) => stage).join(", ")}` : ""}</p>`;
  });
}
