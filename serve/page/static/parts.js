// Parts that several views share: requests, errors, and command lines to copy.

import { html, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { cachedAnswer, request } from "./ask.js";
import { iso, time } from "./words.js";

const SETTLED_MS = 120;

// The server's answer for an address. The previous address's answer stays until the next one arrives, except next to an
// error, to which it does not belong. Superseded requests are cancelled, and addresses that change quickly, as under a
// slider, are requested once they settle.
export function useRequest(address, tick = 0) {
  const [state, set] = useState({ data: undefined, problem: null, of: "" });
  const last = useRef(0);
  useLayoutEffect(() => {
    if (!address) return set({ data: undefined, problem: null, of: "" });
    const cached = cachedAnswer(address);
    if (cached) return set({ data: cached, problem: null, of: address });
    const control = new AbortController();
    const soon = performance.now() - last.current < SETTLED_MS;
    last.current = performance.now();
    const begin = () =>
      request(address, { signal: control.signal }).then(
        (data) => control.signal.aborted || set({ data, problem: null, of: address }),
        (problem) => problem.name === "AbortError" || set((before) => ({ data: before.of === address ? before.data : undefined, problem, of: address })),
      );
    const timer = soon ? setTimeout(begin, 40) : void begin();
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [address, tick]);
  return { ...state, isBusy: Boolean(address) && state.of !== address };
}

export function Problem({ problem }) {
  if (!problem || problem.status === 401) return null;
  return html`<div class="problem" role="alert"><strong>${problem.message}</strong>${problem.hint && html`<span>${problem.hint}</span>`}</div>`;
}

// Fades in with a delay, so that quick answers show no flicker.
export const Reading = () => html`<p class="note reading">reading …</p>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// A command line for what is shown, and a button that copies it.
export function Command({ line, label = "" }) {
  const [copied, setCopied] = useState(false);
  const code = useRef(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(line);
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    } catch {
      getSelection().selectAllChildren(code.current); // no clipboard without TLS: select the text, to be copied by hand
    }
  };
  return html`<div class="command">
    <span class="prompt" aria-hidden="true">$</span><code ref=${code}>${line}</code>
    <button type="button" class="quiet" onClick=${copy} aria-label=${`Copy the command${label ? ` for ${label}` : ""}: ${line}`}>${copied ? "copied" : "copy"}</button>
  </div>`;
}

export const Time = ({ ms }) => (ms ? html`<time datetime=${iso(ms)} title=${iso(ms)}>${time(ms)}</time>` : "–");

// A table; cells are text or elements. Columns are [heading, "right"?, explanation?]. Undefined rows (not loaded yet) show
// nothing.
export function Grid({ label, columns, rows, empty }) {
  if (!rows) return null;
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class="grid">
      <thead><tr>${columns.map(([heading, align, what]) => html`<th scope="col" class=${align ?? ""} title=${what}>${heading}</th>`)}</tr></thead>
      <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, at) => html`<td class=${columns[at][1] ?? ""}>${cell}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}
