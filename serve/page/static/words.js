// How times, numbers and values are written, and the command line for what is shown.

import { moment } from "./route.js";

const withDate = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const withYear = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

// What JavaScript has no date for, such as milliseconds taken for seconds twice over, is told as it is.
const far = (ms) => !(Math.abs(ms) <= 8.64e15);
export const time = (ms) => (ms ? far(ms) ? `${ms} ms` : (Date.now() - ms > 300 * 86_400_000 ? withYear : withDate).format(ms) : "–");
export const iso = (ms) => (far(ms) ? `${ms} ms` : new Date(ms).toISOString());

// As short as a span of times allows.
export const tick = (ms, span) => (span < 600_000 ? clock : span < 2 * 86_400_000 ? minutes : day).format(ms);

export function span(ms) {
  const s = Math.round(Math.abs(ms) / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 && s < 600 ? ` ${s % 60} s` : ""}`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h${s % 3600 < 60 ? "" : ` ${Math.floor((s % 3600) / 60)} min`}`;
  return `${Math.floor(s / 86_400)} d${s < 3 * 86_400 ? ` ${Math.floor((s % 86_400) / 3600)} h` : ""}`;
}

export const ago = (ms, now = Date.now()) => (now - ms < 1500 ? "now" : `${span(now - ms)} ago`);

const whole = new Intl.NumberFormat("en");
export const count = (number) => (number == null ? "?" : whole.format(number));
export const plural = (number, what, several = `${what}s`) => `${count(number)} ${number === 1 ? what : several}`;

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; bytes >= 1024 && at < units.length - 1; at++) bytes /= 1024;
  return `${at && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

// One value of a table: the user's own, so nothing is rounded or grouped.
export function value(given) {
  if (given == null) return "NULL";
  if (typeof given === "object") return JSON.stringify(given);
  return String(given);
}

// What would turn a text's direction, end its line, or not be seen at all is written out, as the command line does; so no
// value passes itself off as another. What joins the parts of an emoji stays.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const units = (found) => SHORT[found] ?? [...Array(found.length).keys()].map((at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join("");
const joins = (found, at, text) => /[\u200d\ufe0e\ufe0f]/u.test(found) && /[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]$/u.test(text.slice(0, at));
export const printable = (text) => text.replace(HIDDEN, (found, at) => (joins(found, at, text) ? found : units(found)));

// As much of a value as a cell has room for, to be seen.
export const shortened = (text, most = 300) => printable(text.length > most ? `${text.slice(0, most)}… (${count(text.length)} characters)` : text);

export const isNumber = (type) => /^(u?int|float|double|half|decimal)/.test(type);

// A number of a table, also one that came as text because JavaScript cannot say it exactly; null for any other value.
export const numberOf = (type, given) => (typeof given === "number" ? given : typeof given === "string" && isNumber(type) && given !== "" && !Number.isNaN(Number(given)) ? Number(given) : null);

// As SQL has a value: text is cast to the type of the column that it is compared with.
export function literal(type, given) {
  if (typeof given === "number") return String(given);
  const text = `'${String(given).replaceAll("'", "''")}'`;
  return /binary/.test(type) ? `from_hex(${text})` : text;
}

// Orders rows by a column, NULL last.
export function compared(type, a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  if (/^-?\d+$/.test(a) && /^-?\d+$/.test(b) && isNumber(type)) return BigInt(a) < BigInt(b) ? -1 : Number(BigInt(a) > BigInt(b));
  const [x, y] = isNumber(type) ? [numberOf(type, a) ?? Infinity, numberOf(type, b) ?? Infinity] : [value(a), value(b)];
  return x < y ? -1 : Number(x > y);
}

// A key as routes and the command line take it.
export function keyText(columns, row) {
  const names = columns.filter((column) => column.key).map((column) => column.name);
  if (names.length > 1) return JSON.stringify(names.map((name) => row[name]));
  const key = row[names[0]];
  if (key == null) return "\\N";
  // A text that looks like null has one more backslash.
  return typeof key === "string" && /^\\+N$/.test(key) ? `\\${key}` : value(key);
}

// Windows of offsets, each topic once: `flights[0] 3 to 17, [1] 5 to 9`.
export function offsets(windows) {
  const topics = new Map();
  for (const each of windows ?? []) {
    const parts = topics.get(each.topic) ?? topics.set(each.topic, []).get(each.topic);
    parts.push(`[${each.partition}] ${each.start} to ${each.end}`);
  }
  return [...topics].map(([topic, parts]) => topic + parts.join(", ")).join("; ");
}

// Bytes, which come as hexadecimal, as the text that they are, else as they come, which is said.
export function textOf(hex) {
  if (hex == null) return "NULL";
  const bytes = Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes).slice(0, 2000);
  } catch {
    return `not valid UTF-8, as hex: ${hex.slice(0, 2000)}`;
  }
}

// A word as a shell takes it.
export function quoted(word) {
  const text = String(word);
  if (/^[\w@%+=:,./~-]+$/.test(text)) return text;
  const shown = printable(text);
  if (shown === text) return `'${text.replaceAll("'", `'\\''`)}'`;
  return `$'${printable(text.replaceAll("\\", "\\\\").replaceAll("'", "\\'"))}'`;
}
// Words that are no name of a column in DuckDB's SQL unless they are quoted: its keywords that are reserved, or of types.
const RESERVED = new Set(`
  all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast check
  collate collation column columns concurrently constraint create cross default deferrable desc describe distinct do
  else end except false fetch for foreign freeze from full generated glob group having ilike in initially inner
  intersect into is isnull join lambda lateral leading left like limit map natural not notnull null offset on only or
  order outer overlaps pivot pivot_longer pivot_wider placing positional primary qualify references returning right
  select semi show similar some struct summarize symmetric table tablesample then to trailing true try_cast tuple
  union unique unpack unpivot using variadic verbose when where window with
`.trim().split(/\s+/));
export const identifier = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) && !RESERVED.has(name) ? name : `"${name.replaceAll('"', '""')}"`);

// A moment as the command line names it.
export function ref(app, at) {
  const { stage, ref: of } = moment(at);
  if (stage) return `${app}/${stage}@${of}`;
  return of === "now" ? app : `${app}@${of}`;
}

export const command = (...words) => ["slackwater", ...words.filter((word) => word !== "" && word != null).map(quoted)].join(" ");
