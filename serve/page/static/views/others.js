// Rejected and late records, the log, and costs.

import { html } from "../vendor/preact-htm.js";
import { path, query } from "../ask.js";
import { Command, Grid, Problem, Time, useRequest } from "../parts.js";
import { address, versionOf } from "../route.js";
import { command, count, plural, shortened, size, textOf } from "../words.js";
import { InputOffsets } from "./key.js";

export function Rejected({ route, live, current, isPart }) {
  const asked = useRequest(query(path("apps", route.app, "rejected"), { every: true, limit: 100 }), live);
  const late = current && !isPart ? current.stages.filter((stage) => stage.late || stage.ahead) : undefined;
  return html`<h2>Rejected records</h2>
    <${Problem} problem=${asked.problem} />
    <p class="note">Records that a stage could not read. They change no table until they are retried: <code>slackwater rejected ${route.app} --retry</code>.</p>
    ${Object.entries(asked.data?.total ?? {}).map(([stage, total]) => html`<p>${stage}: ${plural(total, "record")} rejected, ${count(asked.data.waiting[stage])} not retried yet</p>`)}
    <${Grid} label="Rejected records" empty="No stage rejected a record." columns=${[["stage"], ["record"], ["rejected"], ["error"], ["value"], ["attempts", "right"], ["state"]]}
      rows=${asked.data?.records.map((each) => [each.stage, each.address, html`<${Time} ms=${each.rejected_ms} />`, shortened(`${each.error}: ${each.message.split("\n")[0]}`), html`<code>${shortened(textOf(each.value))}</code>`, count(each.attempts), each.retried == null ? "not retried yet" : `retried by v${each.retried}`])} />
    <h2>Late records</h2>
    <p class="note">Records that no table counts because of their event time: older than the stage's watermark, or too far ahead of the clock.</p>
    <${Grid} label="Late records" empty="No record was late or too far ahead of the clock." columns=${[["stage"], ["too late", "right"], ["too far ahead of the clock", "right"], ["watermark"]]}
      rows=${late?.map((stage) => [stage.stage, count(stage.late), count(stage.ahead), html`<${Time} ms=${stage.watermark_ms} />`])} />
    <${Command} line=${command("rejected", route.app)} />`;
}

export function Log({ route, live }) {
  const snapshots = useRequest(path("apps", route.app, "snapshots"), live);
  const commits = useRequest(query(path("apps", route.app, "log"), { limit: 50 }), live);
  const done = useRequest(path("apps", route.app, "operations"), live);
  const to = (at) => address({ ...route, view: "rows", names: [], at });
  const taken = snapshots.data && [...snapshots.data.snapshots].reverse();
  return html`<h2>Snapshots</h2>
    <${Problem} problem=${snapshots.problem} />
    <${Grid} label="Snapshots" empty="No snapshot yet." columns=${[["name"], ["taken"], ["kind"], ["by"]]}
      rows=${taken?.map((each) => [html`<a data-row href=${to(each.name)}>${each.name}</a>`, html`<${Time} ms=${each.completed_ms} />`, each.kind, each.by])} />
    <h2>Operations</h2>
    <${Problem} problem=${done.problem} />
    <${Grid} label="Operations" empty="No rewind, edit, migration or other operation yet." columns=${[["when"], ["operation"], ["details"], ["by"], ["reason"]]}
      rows=${done.data?.map((each) => [html`<${Time} ms=${each.time_ms} />`, each.verb, each.detail, each.by, each.message])} />
    <h2>Newest commits</h2>
    <${Problem} problem=${commits.problem} />
    <${Grid} label="Commits" empty="No commit yet." columns=${[["committed"], ["version"], ["kind"], ["rows read", "right"], ["took", "right"], ["offsets read"]]}
      rows=${commits.data?.map((each) => [html`<${Time} ms=${each.time_ms} />`, html`<a data-row href=${to(versionOf(each.stage, each.version))}>${each.stage} v${each.version}</a>`, each.deployed ? "deploy" : each.kind, count(each.rows_in), `${count(each.duration_ms)} ms`, html`<${InputOffsets} app=${route.app} stage=${each.stage} version=${each.version} windows=${each.windows} />`])} />
    <${Command} line=${command("log", route.app)} /><${Command} line=${command("log", route.app, "--operations")} />`;
}

export function Cost({ route, live, current }) {
  const asked = useRequest(path("apps", route.app, "cost"), live);
  const found = asked.data?.costs[0];
  const objects = (current?.stages ?? []).reduce((sum, stage) => sum + stage.ssts, 0);
  const money = (amount) => `${amount.toFixed(2)} ${found.prices.currency}`;
  return html`<${Problem} problem=${asked.problem} />
    ${found && html`<dl class="figures">
      <div><dt>tables, newest version</dt><dd>${size(found.total.table_bytes)}</dd></div>
      <div><dt>SSTs of these tables</dt><dd>${count(objects)}</dd></div>
      <div><dt>stored, all history included</dt><dd>${size(found.total.stored_bytes)}</dd></div>
      <div><dt>monthly cost at this rate</dt><dd>${money(found.total.monthly_cost)}</dd></div>
    </dl>
    <${Grid} label="Cost by stage" empty="" columns=${[["stage"], ["GET/h", "right"], ["PUT/h", "right"], ["LIST/h", "right"], ["read/h", "right"], ["written/h", "right"], ["tables", "right"], ["stored", "right"], ["per month", "right"]]}
      rows=${[...found.stages, found.total].map((each) => [each.stage, ...(each.counted_ms ? [count(each.gets), count(each.puts), count(each.lists), size(each.bytes_read), size(each.bytes_written)] : ["–", "–", "–", "–", "–"]), size(each.table_bytes), size(each.stored_bytes), money(each.monthly_cost)])} />
    <p class="note">Requests and bytes are per hour while the app runs, measured over the last day${found.total.counted_ms ? "" : "; the app committed nothing in that time"}. ${plural(found.stages.length, "stage")}.</p>`}
    <${Command} line=${command("status", route.app, "--cost", "--since", "1d")} />`;
}
