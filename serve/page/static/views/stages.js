// How the stages stand at the moment: the graph, and the same in figures; sinks.

import { html } from "../vendor/preact-htm.js";
import { Command, Grid, Time } from "../parts.js";
import { command, count, plural, ref, size } from "../words.js";
import { Graph } from "./graph.js";

export function Stages({ route, here, isNow }) {
  if (!here) return null;
  const app = route.app;
  const sinks = here.stages.flatMap((stage) => stage.sinks.map((sink) => [stage, sink]));
  const line = isNow ? command("status", app) : command("verify", ref(app, route.at));
  return html`
    <${Graph} here=${here} route=${route} isNow=${isNow} />
    ${here.waiting.length > 0 && html`<${Waiting} waiting=${here.waiting} />`}
    <${Grid} label="Stages" empty="No stage has committed yet." columns=${[["stage"], ["version", "right"], ["committed"], ["rows in last batch", "right"], ["keys", "right"], ["SSTs", "right"], ["size", "right"], ["behind"], ["watermark"], ["late", "right"], ["rejected", "right"]]}
      rows=${here.stages.map((stage) => [stage.stage, `v${stage.version}`, html`<${Time} ms=${stage.time_ms} />`, count(stage.rows), stage.keys == null ? "–" : `${stage.keys_exact ? "" : "≤ "}${count(stage.keys)}`, count(stage.ssts), size(stage.bytes), behind(stage), html`<${Time} ms=${stage.watermark_ms} />`, count(stage.late), count(stage.rejected)])} />
    ${sinks.length > 0 && html`<h2>Sinks</h2><${Grid} label="Sinks" empty="" columns=${[["sink"], ["of stage"], ["rows given to it", "right"], ["published up to", "right"], ["behind"]]}
      rows=${sinks.map(([stage, sink]) => [sink.name, stage.stage, count(sink.sent), !isNow ? "not kept" : sink.place == null ? "–" : `v${sink.place}`, !isNow ? "–" : sink.rows ? `${plural(sink.rows, "row")}, ${plural(sink.versions, "version")}` : "0"])} />`}
    <${Command} line=${line} />`;
}

function behind(stage) {
  if (stage.retired) return stage.called ? `called ${stage.called} since` : "retired";
  return stage.inputs.map((input) => `${input.name}: ${input.records == null ? "not known" : count(input.records)}`).join("; ");
}

function Waiting({ waiting }) {
  return waiting.map(({ name, stages }) => {
    const all = Object.entries(stages);
    const done = all.filter(([, answer]) => answer.version != null && !answer.awaited.length);
    return html`<p class="note">snapshot <strong>${name}</strong> is being taken: ${done.length} of ${all.length} stages are done${all.length > done.length ? `; it waits for ${all.filter((each) => !done.includes(each)).map(([stage]) => stage).join(", ")}` : ""}</p>`;
  });
}
