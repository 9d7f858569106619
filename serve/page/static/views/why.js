// The records that made a key's row, by replays on the server, version by version.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { path, request } from "../ask.js";
import { Grid, Problem, Reading, Time } from "../parts.js";
import { moment } from "../route.js";
import { plural, shortened, textOf } from "../words.js";

const MOST = 100;

export function Why({ route, table, name, me }) {
  const [state, set] = useState({});
  useEffect(() => set({}), [route.app, table, name, route.at]);
  if (!me.verbs.includes("bisect")) return null;
  const start = async () => {
    set({ isBusy: true });
    const at = moment(route.at);
    const ref = at.stage && at.stage !== table ? "now" : at.ref;
    try {
      set({ found: await request(path("apps", route.app, "at", ref, "tables", table, "why"), { body: { key: name, payloads: true } }) });
    } catch (problem) {
      set({ problem });
    }
  };
  return html`<p><button type="button" onClick=${start} disabled=${state.isBusy}>records that made this row</button></p>
    ${state.isBusy && html`<${Reading} />`}
    <${Problem} problem=${state.problem} />
    ${state.found && html`<${Records} found=${state.found} />`}`;
}

function Records({ found }) {
  const { records, versions } = found;
  return html`<section aria-label="Records that made this row">
    <h3>${plural(records.length, "record")} made the row of v${found.version}${found.whole ? "" : ", as far as known"}</h3>
    <${Grid} label="Records" columns=${[["record"], ["sent"], ["key"], ["value"]]} empty="No record is known."
      rows=${records.slice(0, MOST).map((each) => [html`<code>${each.record}</code>`, html`<${Time} ms=${each.time_ms} />`, shortened(textOf(each.key)), shortened(textOf(each.value), 300)])} />
    ${records.length > MOST && html`<p class="note">and ${plural(records.length - MOST, "more record")}; slackwater why shows all</p>`}
    <${Grid} label="Versions" columns=${[["version"], ["committed"], ["read for it"]]} empty=""
      rows=${versions.map((each) => [`${each.stage} v${each.version}`, html`<${Time} ms=${each.time_ms} />`, html`<span class="offsets">${each.records.slice(0, 10).map((one) => one.record).join(", ")}${each.records.length > 10 ? ` and ${each.records.length - 10} more` : ""}</span>${each.unknown && html` <span class="warn">${each.unknown}</span>`}`])} />
  </section>`;
}
