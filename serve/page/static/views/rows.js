// A table at the moment, optionally compared with another moment.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { path, query } from "../ask.js";
import { address, moment, navigate } from "../route.js";
import { Command, Empty, Problem, Reading, useRequest } from "../parts.js";
import { command, compareValues, count, formatValue, identifier, isNumber, keyText, plural, printable, ref, shortened } from "../words.js";

const LIMIT = 100;
const MOST_CHIPS = 12;

export function Rows(props) {
  const { route, current, tables } = props;
  if (!current) return null;
  if (!tables.length) return html`<${Empty}>No stage of this app has a table at this moment.<//>`;
  const table = route.names[0] || tables[0];
  const to = (name) => ({ ...route, view: "rows", names: [name], where: "", key: "", order: "" });
  return html`<div class="tools">
      ${tables.length > MOST_CHIPS ? html`<label class="note">table <select onChange=${(event) => navigate(to(event.target.value))}>${[...new Set([table, ...tables])].map((name) => html`<option value=${name} selected=${name === table}>${name}</option>`)}</select></label>` : html`<ul class="chips" aria-label="Tables">${tables.map((name) => html`<li><a href=${address(to(name))} aria-current=${name === table ? "true" : undefined}>${name}</a></li>`)}</ul>`}
      <${Filter} route=${route} table=${table} me=${props.me} />
    </div>
    <${route.where ? QueryResult : route.key ? RowByKey : Paged} key=${table} ...${props} table=${table} />`;
}

// Filters by key, or by a SQL condition.
function Filter({ route, table, me }) {
  const [kind, setKind] = useState(route.where ? "where" : "key");
  const [text, setText] = useState(route.where || route.key || "");
  const submitted = useRef("");
  // A new filter in the URL replaces the text, except for the one that was submitted here.
  useEffect(() => {
    const given = route.where || route.key || "";
    if (given !== submitted.current) setText(given);
    submitted.current = given;
  }, [route.where, route.key]);
  const submit = (event) => {
    event.preventDefault();
    submitted.current = text;
    navigate({ ...route, names: [table], view: "rows", where: kind === "where" ? text : "", key: kind === "key" ? text : "" });
  };
  return html`<form class="filter" role="search" onSubmit=${submit}>
    <label class="unseen" for="kind">Filter by</label>
    <select id="kind" value=${kind} onChange=${(event) => setKind(event.target.value)}><option value="key" selected=${kind === "key"}>key</option>${me.verbs.includes("sql") && html`<option value="where" selected=${kind === "where"}>where</option>`}</select>
    <label class="unseen" for="filter">${kind === "key" ? "Key" : "Condition in SQL"}</label>
    <input id="filter" data-filter value=${text} onInput=${(event) => setText(event.target.value)} placeholder=${kind === "key" ? "a key" : "delay > 1000"} spellcheck="false" autocapitalize="off" autocomplete="off" />
    <button>Find</button>
    ${(route.where || route.key) && html`<button type="button" class="quiet" onClick=${() => navigate({ ...route, where: "", key: "" })}>clear</button>`}
  </form>`;
}

const againstParameters = (other) => (other ? { against: moment(other).ref, against_stage: moment(other).stage } : {});

// `delay` sorts ascending by that column, `-delay` descending. NULL is last in both.
const orderOf = (order) => (order ? { by: order.replace(/^-/, ""), isDown: order.startsWith("-") } : null);

// Numbers: descending first, since wrong values tend to be large; then ascending; then in storage order.
function nextOrder(order, { name, type }) {
  const turns = isNumber(type) ? [`-${name}`, name, ""] : [name, `-${name}`, ""];
  return turns[(turns.indexOf(order) + 1) % turns.length];
}

function Paged(props) {
  const { route, at, table, live, isNow, comparedWith, me } = props;
  const [starts, setStarts] = useState([""]);
  const [isDiffering, setDiffering] = useState(false);
  const base = path("apps", route.app, "at", at.ref, "tables", table, "rows");
  const asked = useRequest(query(base, { stage: at.stage, limit: LIMIT, start: starts.at(-1), ...againstParameters(route.against) }), isNow ? live : 0);
  const found = asked.data;
  const changed = (found?.changes ?? []).filter(Boolean).length;
  const isWhole = found && starts.length === 1 && found.next == null;
  const canSort = isWhole || me.verbs.includes("sql");
  // Sorting one page would look like sorting the table, so let SQL sort all rows.
  if (found && route.order && !isWhole && !isDiffering) return html`<${QueryResult} ...${props} />`;
  const line = route.against
    ? command("diff", ref(route.app, route.against), ref(route.app, route.at), "--table", table)
    : command("query", ref(route.app, route.at), `FROM ${identifier(table)} LIMIT ${LIMIT}`);
  return html`<${Problem} problem=${asked.problem} />
    ${!found && asked.isBusy && html`<${Reading} />`}
    ${found && isDiffering && route.against && html`<${AllDifferences} route=${route} at=${at} table=${table} live=${live} isNow=${isNow} columns=${found.columns} onBack=${() => setDiffering(false)} />`}
    ${found && !(isDiffering && route.against) && html`<p class="note" aria-live="off">${table} v${found.version}: ${pageOf(found, starts.length, isWhole)}${found.columns.length > 20 ? `, ${plural(found.columns.length, "column")}` : ""}${canSort ? "; click a heading to sort" : ""}${route.against && comparedWith ? `; ${changed ? plural(changed, "row differs", "rows differ") : "no row differs"}${isWhole ? "" : " on this page"}` : ""}</p>
      <${Table} label=${`Rows of ${table}`} found=${isWhole ? sorted(found, route.order) : found} route=${route} table=${table} isBusy=${asked.isBusy} canSort=${canSort} />
      <div class="pages">
        <button type="button" disabled=${starts.length < 2} onClick=${() => setStarts(starts.slice(0, -1))}>Back</button>
        <button type="button" disabled=${found.next == null} onClick=${() => setStarts([...starts, found.next])}>More rows</button>
        ${route.against && html`<button type="button" onClick=${() => setDiffering(true)}>All rows that differ</button>`}
      </div>`}
    <${Command} line=${line} />`;
}

// The shown part of the table. Only an upper bound of the number of rows is known: a key counts once for each file that
// has it, until files are merged.
function pageOf({ rows, keys_at_most: most }, page, isWhole) {
  if (isWhole) return rows.length === 1 ? "1 row, all of the table" : `${count(rows.length)} rows, all of the table`;
  return `page ${page}: ${plural(rows.length, "row")} in storage order; the table has at most ${plural(most, "row")} (a rewritten row counts once per file until compaction)`;
}

function sorted(found, order) {
  const { by, isDown } = orderOf(order) ?? {};
  const column = found.columns.find((each) => each.name === by);
  if (!column) return found;
  const { rows, changes, before } = found;
  const of = (at) => (rows[at] ?? before[at])[by];
  const places = [...rows.keys()].sort((a, b) => (of(a) == null || of(b) == null || !isDown ? 1 : -1) * compareValues(column.type, of(a), of(b)));
  return { ...found, rows: places.map((at) => rows[at]), ...(changes && { changes: places.map((at) => changes[at]), before: places.map((at) => before[at]) }) };
}

function RowByKey({ route, at, table, live, isNow }) {
  const base = path("apps", route.app, "at", at.ref);
  const asked = useRequest(query(`${base}${path("tables", table)}`, { key: route.key, stage: at.stage }), isNow ? live : 0);
  const about = useRequest(query(base, { stage: at.stage }), isNow ? live : 0);
  const columns = about.data?.tables.find((each) => each.table === table)?.columns;
  const rows = asked.data?.rows.filter(Boolean) ?? [];
  return html`<${Problem} problem=${asked.problem} />
    ${asked.data && !rows.length && html`<${Empty}>There is no row with this key at this moment.<//>`}
    ${rows.length > 0 && columns && html`<${Table} label=${`Row of ${table}`} found=${{ columns, rows }} route=${route} table=${table} />`}
    <${Command} line=${command("get", ref(route.app, route.at), table, route.key)} />`;
}

function QueryResult({ route, at, table, live, isNow }) {
  const order = orderOf(route.order);
  const sql = [`FROM ${identifier(table)}`, route.where && `WHERE ${route.where}`, order && `ORDER BY ${identifier(order.by)}${order.isDown ? " DESC" : ""} NULLS LAST`].filter(Boolean).join(" ");
  const base = path("apps", route.app, "at", at.ref);
  const asked = useRequest(query(`${base}/query`, { sql, limit: LIMIT, stage: at.stage }), isNow ? live : 0);
  const about = useRequest(query(base, { stage: at.stage }), isNow ? live : 0);
  const keys = new Set(about.data?.tables.find((each) => each.table === table)?.columns.filter((each) => each.key).map((each) => each.name));
  const columns = asked.data?.columns.map((each) => ({ ...each, key: keys.has(each.name) }));
  return html`<${Problem} problem=${asked.problem} />
    ${asked.isBusy && !asked.data && html`<${Reading} />`}
    ${asked.data && html`<p class="note">${asked.data.cut_off ? `the first ${count(asked.data.rows.length)} rows; there are more` : plural(asked.data.rows.length, "row")}${order ? `, by ${order.by}, ${order.isDown ? "highest" : "lowest"} first` : ""}${route.against ? "; query results are not compared with another moment" : ""}</p>
      <${Table} label=${`Rows of ${table}`} found=${{ columns, rows: asked.data.rows }} route=${route} table=${table} isBusy=${asked.isBusy} canSort=${true} />`}
    <${Command} line=${command("query", ref(route.app, route.at), `${sql} LIMIT ${LIMIT}`)} />`;
}

// All rows that differ. The cost depends on the rows written between the two moments, not on the table's size.
function AllDifferences({ route, at, table, live, isNow, columns, onBack }) {
  const [one, other] = [moment(route.against), at];
  const between = { before: one.ref, before_stage: one.stage, after: other.ref, after_stage: other.stage, table, limit: LIMIT };
  const asked = useRequest(query(path("apps", route.app, "diff"), between), isNow ? live : 0);
  const found = asked.data?.tables[0];
  const rows = found?.rows.map((each) => (each.after ? { ...each.key, ...each.after } : null));
  const before = found?.rows.map((each) => (each.before ? { ...each.key, ...each.before } : null));
  return html`<${Problem} problem=${asked.problem} />
    ${!found && asked.isBusy && html`<${Reading} />`}
    ${found && html`<p class="note">in all of ${table} ${count(found.added)} added, ${count(found.removed)} removed, ${count(found.changed)} changed${found.added + found.removed + found.changed > rows.length ? `; the first ${count(rows.length)}` : ""}</p>
      <${Table} label=${`What differs in ${table}`} found=${{ columns, rows, before, changes: found.rows.map((each) => each.change) }} route=${route} table=${table} isBusy=${asked.isBusy} />`}
    <div class="pages"><button type="button" onClick=${onBack}>All rows</button></div>`;
}

// Rows as text, with old values next to those that differ from the other moment.
export function Table({ label, found, route, table, isBusy = false, canSort = false }) {
  const { columns, rows, changes = [], before = [] } = found;
  if (!rows.length) return html`<${Empty}>No rows.<//>`;
  const pinned = columns.find((column) => column.key);
  const order = orderOf(route.order);
  const heading = (each) => html`${printable(each.name)}${each.key && html`<span class="keymark" title="key"> key</span>`}`;
  const direction = ({ name }) => (order?.by !== name ? undefined : order.isDown ? "descending" : "ascending");
  return html`<div class=${`scroll ${isBusy ? "busy" : ""}`} tabindex="0" role="region" aria-label=${label}>
    <table class="grid rows">
      <thead><tr>${changes.length > 0 && html`<th scope="col"><span class="unseen">change</span></th>`}${columns.map((each) => html`<th scope="col" class=${`${isNumber(each.type) ? "right" : ""} ${each === pinned ? "pinned" : ""}`} title=${each.type} aria-sort=${canSort ? direction(each) : undefined}>${canSort ? html`<button type="button" class="sort" onClick=${() => navigate({ ...route, order: nextOrder(route.order ?? "", each) }, { replace: true })}>${heading(each)}</button>` : heading(each)}</th>`)}</tr></thead>
      <tbody>${rows.map((row, at) => html`<${Row} columns=${columns} row=${row ?? before[at]} change=${changes[at]} was=${row ? before[at] : null} withChange=${changes.length > 0} route=${route} table=${table} />`)}</tbody>
    </table>
  </div>`;
}

const SIGN = { added: "+", removed: "−", changed: "~" };

function Row({ columns, row, change, was, withChange, route, table }) {
  const first = columns.find((column) => column.key);
  return html`<tr class=${change || ""}>
    ${withChange && html`<td class="sign" title=${change || "unchanged"}>${SIGN[change] ?? ""}<span class="unseen">${change || ""}</span></td>`}
    ${columns.map((each) => {
      const text = formatValue(row[each.name]);
      const old = was && formatValue(was[each.name]) !== text ? formatValue(was[each.name]) : null;
      const shape = `${isNumber(each.type) ? "right" : ""} ${text.length > 48 ? "long" : ""} ${row[each.name] == null ? "null" : ""} ${old != null ? "differs" : ""} ${each === first ? "pinned" : ""}`;
      const inner = each === first ? html`<a data-row href=${address({ ...route, view: "key", names: [table, keyText(columns, row)], key: "", where: "" })}>${shortened(text)}</a>` : shortened(text);
      return html`<td class=${shape}>${old != null && html`<del>${shortened(old)}</del> `}${inner}</td>`;
    })}
  </tr>`;
}
