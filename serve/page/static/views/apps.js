// The apps of the store.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { path } from "../ask.js";
import { Command, Empty, Problem, useRequest } from "../parts.js";
import { address } from "../route.js";
import { ago, count, plural, size } from "../words.js";

export function Apps({ token }) {
  const apps = useRequest("/apps", token);
  document.title = "slackwater";
  return html`<main>
    <div class="heading"><h1>Apps</h1></div>
    <${Problem} problem=${apps.problem} />
    <div class="view" id="view" tabindex="-1">
      ${apps.data && !apps.data.apps.length && html`<${Empty}>This store has no app yet; <code>slackwater run FILE</code> makes one.<//>`}
      <ul class="cards">${(apps.data?.apps ?? []).map((name) => html`<${Card} key=${name} name=${name} token=${token} />`)}</ul>
      ${apps.data && html`<${Command} line="slackwater status" />`}
    </div>
  </main>`;
}

const some = (names) => (names.length > 6 ? `${names.slice(0, 5).join(", ")} and ${count(names.length - 5)} more tables` : names.join(", ") || "no table");

// Whether the element was ever in view: a store may have a thousand apps.
function useSeen(element) {
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      setSeen(true);
      observer.disconnect();
    });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return isSeen;
}

function Card({ name, token }) {
  const card = useRef(null);
  const found = useRequest(useSeen(card) ? path("apps", name, "at", "now", "stages") : "", token);
  const stages = found.data?.stages ?? [];
  const running = stages.filter((stage) => stage.runner).length;
  const bytes = stages.reduce((sum, stage) => sum + stage.bytes, 0);
  const waiting = stages.reduce((sum, stage) => sum + stage.rejected_waiting, 0);
  return html`<li class="card" ref=${card}>
    <a class="title" data-row href=${address({ app: name })}>${name}</a>
    ${found.data && html`<p>${plural(stages.length, "stage")}, ${running ? `${count(running)} running` : "none running"}; last commit <span class="whole">${ago(found.data.time_ms)}</span></p>
      <p class="note">${some(Object.keys(found.data.tables))} · <span class="whole">${size(bytes)}</span>${found.data.origin?.app ? ` · clone of ${found.data.origin.app}` : ""}</p>`}
    ${waiting > 0 && html`<p class="warn">${plural(waiting, "rejected record")} waiting</p>`}
    ${found.problem && (found.problem.status === 404 ? html`<p class="note">no version yet</p>` : html`<p class="warn">${found.problem.message}</p>`)}
  </li>`;
}
