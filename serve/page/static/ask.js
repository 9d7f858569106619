// Requests to the server: with the token, cancelled when superseded, and cached if the answer cannot change.

const MAX_CACHED = 150; // maximum number of cached answers about fixed versions
const cache = new Map();
const listeners = new Set();
let token = sessionStorage.getItem("token") ?? "";

export class Problem extends Error {
  constructor(status, { error = "", message = "", hint = "" } = {}) {
    super(message || `the server answered ${status}`);
    Object.assign(this, { status, kind: error, hint });
  }
}

// The token is kept while the tab is open, and never in a URL.
export function setToken(given) {
  token = given.trim();
  cache.clear();
  if (token) sessionStorage.setItem("token", token);
  else sessionStorage.removeItem("token");
  for (const each of listeners) each("token");
}

export const hasToken = () => token !== "";

// Calls the listener with "token" when the token changes, and "needed" when the server requires one.
export function onToken(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export const path = (...parts) => "/" + parts.map(encodeURIComponent).join("/");

export function query(address, fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value != null);
  return given.length ? `${address}?${new URLSearchParams(given)}` : address;
}

// Keeps numbers that JavaScript cannot represent exactly as text: large integers, and decimals with more digits than a
// double has.
function exact(_name, value, context) {
  if (typeof value !== "number" || Number.isSafeInteger(value) || !context?.source) return value;
  const digits = context.source.replace(/^-?[0.]*/, "").replace(".", "");
  return /^-?\d+$/.test(context.source) || /^\d{18,}$/.test(digits) ? context.source : value;
}

export const parsed = (text) => JSON.parse(text, exact);

const isFixed = (address) =>
  /\/at\/v\d+[/?]/.test(address) && !/[?&]against=(?!v\d+(&|$))/.test(address);

async function send(address, { signal, body, method = body ? "POST" : "GET" } = {}) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (body) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(address, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { message: "the server does not answer", hint: "start it with: slackwater serve" });
  }
  if (answer.ok) return answer;
  const document = await answer.json().catch(() => ({}));
  if (answer.status === 401) for (const each of listeners) each("needed");
  throw new Problem(answer.status, document);
}

export async function request(address, how = {}) {
  if (!how.body && cache.has(address)) return cache.get(address);
  const found = parsed(await (await send(address, how)).text());
  if (!how.body && isFixed(address)) {
    cache.set(address, found);
    if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
  }
  return found;
}

// The cached answer, if there is one.
export const cachedAnswer = (address) => cache.get(address);

// Server-sent events, by fetch, since EventSource cannot send a token. Returns when the server ends the stream.
export async function events(address, onEvent, how = {}) {
  const reader = (await send(address, how)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const lines = text.slice(0, end).split("\n");
      const of = (name) => lines.filter((line) => line.startsWith(name + ": ")).map((line) => line.slice(name.length + 2));
      const data = of("data").join("\n");
      if (data) onEvent(of("event")[0] ?? "message", parsed(data));
    }
  }
}
