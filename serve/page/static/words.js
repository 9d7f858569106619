// Formats of times, numbers and values, and the command lines that correspond to a view.

import { moment } from "./route.js";

const withDate = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const withYear = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

// Times outside of JavaScript's range, such as microseconds taken for milliseconds, are shown as numbers.
const isOutOfRange = (ms) => !(Math.abs(ms) <= 8.64e15);
export const time = (ms) => (ms ? isOutOfRange(ms) ? `${ms} ms` : (Date.now() - ms > 300 * 86_400_000 ? withYear : withDate).format(ms) : "–");
export const iso = (ms) => (isOutOfRange(ms) ? `${ms} ms` : new Date(ms).toISOString());

// A time as short as the displayed span allows.
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

// Bytes in decimal units, as the command line shows them.
export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= (at ? 999.95 : 1000) && at < units.length - 1; at++) bytes /= 1000;
  return `${at ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

// A table's value, neither rounded nor grouped.
export function formatValue(given) {
  if (given == null) return "NULL";
  if (typeof given === "object") return JSON.stringify(given);
  return String(given);
}

// Escapes characters that change the text's direction, end the line or are invisible, as the command line does, so that no
// value can look like another one. Joiners within an emoji stay.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const escapeSequence = (found) => SHORT[found] ?? [...Array(found.length).keys()].map((at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join("");
const joins = (found, at, text) => /[\u200d\ufe0e\ufe0f]/u.test(found) && /[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]$/u.test(text.slice(0, at));
export const printable = (text) => text.replace(HIDDEN, (found, at) => (joins(found, at, text) ? found : escapeSequence(found)));

// A value cut to the size of a cell, and escaped.
export const shortened = (text, most = 300) => printable(text.length > most ? `${text.slice(0, most)}… (${count(text.length)} characters)` : text);

export const isNumber = (type) => /^(u?int|float|double|half|decimal)/.test(type);

// A table's number, also if sent as text because JavaScript cannot represent it exactly; null for any other value.
export const numberOf = (type, given) => (typeof given === "number" ? given : typeof given === "string" && isNumber(type) && given !== "" && !Number.isNaN(Number(given)) ? Number(given) : null);

// A value as a SQL literal; DuckDB casts text to the type of the column that it is compared with.
export function literal(type, given) {
  if (typeof given === "number") return String(given);
  const text = `'${String(given).replaceAll("'", "''")}'`;
  return /binary/.test(type) ? `from_hex(${text})` : text;
}

// Orders rows by a column, NULL last.
export function compareValues(type, a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  if (/^-?\d+$/.test(a) && /^-?\d+$/.test(b) && isNumber(type)) return BigInt(a) < BigInt(b) ? -1 : Number(BigInt(a) > BigInt(b));
  const [x, y] = isNumber(type) ? [numberOf(type, a) ?? Infinity, numberOf(type, b) ?? Infinity] : [formatValue(a), formatValue(b)];
  return x < y ? -1 : Number(x > y);
}

// A key's text for routes and the command line.
export function keyText(columns, row) {
  const names = columns.filter((column) => column.key).map((column) => column.name);
  if (names.length > 1) return JSON.stringify(names.map((name) => row[name]));
  const key = row[names[0]];
  if (key == null) return "\\N";
  // Escape a text that looks like null with one more backslash.
  return typeof key === "string" && /^\\+N$/.test(key) ? `\\${key}` : formatValue(key);
}

// Offset ranges, grouped by topic: `flights[0] 3 to 17, [1] 5 to 9`.
export function offsets(windows) {
  const topics = new Map();
  for (const each of windows ?? []) {
    const parts = topics.get(each.topic) ?? topics.set(each.topic, []).get(each.topic);
    parts.push(`[${each.partition}] ${each.start} to ${each.end}`);
  }
  return [...topics].map(([topic, parts]) => topic + parts.join(", ")).join("; ");
}

// Bytes, given as hexadecimal, as UTF-8 text, or as hexadecimal with a note.
export function textOf(hex) {
  if (hex == null) return "NULL";
  const bytes = Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes).slice(0, 2000);
  } catch {
    return `not valid UTF-8, as hex: ${hex.slice(0, 2000)}`;
  }
}

// A word quoted for a shell.
export function shellQuoted(word) {
  const text = String(word);
  if (/^[\w@%+=:,./~-]+$/.test(text)) return text;
  const shown = printable(text);
  if (shown === text) return `'${text.replaceAll("'", `'\\''`)}'`;
  return `$'${printable(text.replaceAll("\\", "\\\\").replaceAll("'", "\\'"))}'`;
}
// DuckDB's keywords that are column names only if quoted.
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

// A moment's ref for the command line.
export function ref(app, at) {
  const { stage, ref: of } = moment(at);
  if (stage) return `${app}/${stage}@${of}`;
  return of === "now" ? app : `${app}@${of}`;
}

export const command = (...words) => ["slackwater", ...words.filter((word) => word !== "" && word != null).map(shellQuoted)].join(" ");
