// The page's state, all of it in the URL's fragment, so that a link can be shared.
//
//   #/flights/rows/carriers?at=carriers@v42&against=before-release
//
// `at` is the part of a ref after the @, with the stage before a version; missing means now.

import { useEffect, useState } from "./vendor/preact-htm.js";

export function parse(hash) {
  const [pathPart, search = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  let parts = [];
  try {
    parts = pathPart.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    // a truncated URL
  }
  const [app = "", view = "stages", ...names] = parts;
  return { app, view, names, ...Object.fromEntries(new URLSearchParams(search)) };
}

const PARAMETERS = ["at", "against", "where", "key", "order", "good", "bad", "zoom"];

export function address(route) {
  const { app = "", view = "stages", names = [] } = route;
  const parts = app ? [app, ...(view === "stages" && !names.length ? [] : [view, ...names])] : [];
  const search = new URLSearchParams(PARAMETERS.filter((name) => route[name]).map((name) => [name, route[name]]));
  return "#/" + parts.map(encodeURIComponent).join("/") + (search.size ? `?${search}` : "");
}

// Navigates to a route. `replace` adds no history entry, for the positions that a slider passes.
export function navigate(route, { replace = false } = {}) {
  const hash = address(route);
  if (hash === location.hash) return;
  if (!replace) location.hash = hash;
  else {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

export function useRoute() {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => set(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

// `carriers@v42` is { ref: "v42", stage: "carriers" }; any other moment is its own ref.
export function moment(at) {
  const found = /^([^@]+)@(v\d+)$/.exec(at ?? "");
  return found ? { stage: found[1], ref: found[2] } : { stage: "", ref: at || "now" };
}

export const versionOf = (stage, version) => `${stage}@v${version}`;

// The version before a commit, which `against` compares with.
export function previousVersion(at) {
  const { stage, ref } = moment(at);
  const version = Number(ref.slice(1)) - 1;
  return stage && version > 0 ? versionOf(stage, version) : "";
}
