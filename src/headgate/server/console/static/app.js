// Which page is shown, and how often it looks again. `frame.js` draws what is around it, `keys.js` are the keys.

import { h, patch } from "./view.js";
import { get, session } from "./api.js";
import { settings, remember, apply, reload } from "./settings.js";
import { link, failure, note } from "./ui.js";
import { frame } from "./frame.js";
import { onKeys } from "./keys.js";
import login from "./pages/login.js";
import overview from "./pages/overview.js";
import streams from "./pages/streams.js";
import stream from "./pages/stream.js";
import consumer from "./pages/consumer.js";
import messages from "./pages/messages.js";
import message from "./pages/message.js";
import dead from "./pages/dead.js";
import tenants from "./pages/tenants.js";
import push from "./pages/push.js";
import sources from "./pages/sources.js";
import pipelines from "./pages/pipelines.js";
import tokens from "./pages/tokens.js";
import audit from "./pages/audit.js";
import doctor from "./pages/doctor.js";

const PAGES = [
  ["/", overview],
  ["/login", login],
  ["/streams", streams],
  ["/streams/:stream", stream],
  ["/streams/:stream/consumers/:consumer", consumer],
  ["/messages", messages],
  ["/streams/:stream/messages/:seq", message],
  ["/dead", dead],
  ["/tenants", tenants],
  ["/push", push],
  ["/sources", sources],
  ["/pipelines", pipelines],
  ["/tokens", tokens],
  ["/audit", audit],
  ["/doctor", doctor],
];
const EVERY = 2000; // milliseconds between looks
const LONGEST = 30_000; // and between those at a server that is away

let here = null; // { page, params, query, state, data, error, number, abort }
let timer = null;
let failures = 0; // looks in a row that the server did not answer
let isMenuOpen = false;

function find() {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  for (const [pattern, page] of PAGES) {
    const wanted = pattern.split("/").filter(Boolean);
    if (wanted.length !== parts.length || !wanted.every((w, i) => w[0] === ":" || w === parts[i])) continue;
    const params = Object.fromEntries(wanted.flatMap((w, i) => (w[0] === ":" ? [[w.slice(1), parts[i]]] : [])));
    return { page, path, params, query: Object.fromEntries(new URLSearchParams(query || "")) };
  }
  return { page: NOWHERE, path, params: {}, query: {} };
}

const NOWHERE = {
  title: () => "Nothing",
  view: () => [
    h("h1", {}, "There is no such page"),
    h("p", {}, link("/", "To the overview"), ", or press / to search."),
  ],
};

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const found = find();
  if (!session.me && found.page !== login) {
    const next = found.path === "/" ? "" : `?next=${encodeURIComponent(location.hash.slice(1))}`;
    location.replace("#/login" + next);
    return;
  }
  here?.abort.abort(); // who has gone on waits for nothing
  const isSame = here && here.page === found.page && here.path === found.path;
  here = {
    ...found,
    state: isSame ? here.state : {},
    data: isSame ? here.data : null,
    error: null,
    number: (here?.number || 0) + 1,
    abort: new AbortController(),
  };
  isMenuOpen = false;
  document.querySelectorAll("dialog").forEach((d) => !isSame && d.remove());
  if (!isSame) window.scrollTo(0, 0);
  draw();
  look();
}

const ctx = {
  get params() {
    return here.params;
  },
  get query() {
    return here.query;
  },
  get state() {
    return here.state;
  },
  get data() {
    return here.data;
  },
  get signal() {
    return here.abort.signal;
  },
  /** Changes the query of the address: pages and filters can be sent to somebody. */
  set(change, { replace = true } = {}) {
    const query = { ...here.query, ...change };
    for (const k of Object.keys(query)) if (query[k] === "" || query[k] == null) delete query[k];
    const text = new URLSearchParams(query).toString();
    const hash = "#" + location.hash.slice(1).split("?")[0] + (text ? "?" + text : "");
    if (hash === location.hash) return;
    history[replace ? "replaceState" : "pushState"](null, "", hash);
    route();
  },
  go: (to) => {
    location.hash = to;
  },
  redraw: () => draw(),
  refresh: () => look(),
};

/** Milliseconds until the page is looked at again; 0: it is not, by itself. */
function every() {
  const { every: wanted = EVERY } = here.page;
  const pace = typeof wanted === "function" ? wanted(ctx) : wanted;
  return failures ? Math.min(EVERY * 2 ** Math.min(failures, 4), LONGEST) : pace;
}

async function look() {
  clearTimeout(timer);
  const now = here;
  if (!now.page.load) return draw();
  let data,
    error = null;
  const began = performance.now();
  try {
    data = await now.page.load(ctx);
  } catch (failed) {
    error = failed;
  }
  if (here.number !== now.number || error?.name === "AbortError") return;
  failures = isAway(error) ? failures + 1 : 0;
  if (error) here.error = error;
  else Object.assign(here, { data, error: null });
  draw();
  clearTimeout(timer);
  // (what takes long is looked at seldom: a tenth of the time at most)
  timer = setTimeout(tick, Math.max(every() || EVERY, (performance.now() - began) * 10));
}

const isAway = (error) => !!error && (error.status === 0 || error.status === 503);

function tick() {
  if (settings.isLive && !document.hidden && every() !== 0) look();
  else timer = setTimeout(tick, EVERY);
}

function draw() {
  const { page, error } = here;
  const name = page.title?.(ctx) || "";
  document.title = name ? `${name} · Headgate` : "Headgate";
  let body;
  if (error && !here.data) body = isAway(error) ? null : failure(error);
  else if (page.load && !here.data) body = h("p", { class: "quiet loading" }, "Looking…");
  else body = view(page);
  const app = document.getElementById("app");
  if (page.isBare) return patch(app, h("div", { key: "bare" }, body));
  const away = isAway(error) ? error : null;
  const problem = error && here.data && !away ? error : null;
  patch(app, frame({ path: here.path, name: page.name, isMenuOpen, turnMenu, draw, turnLive, away, problem, body }));
}

/** What is wrong with one page is said there, and stops nothing else. */
function view(page) {
  try {
    return page.view(ctx, here.data);
  } catch (wrong) {
    console.error(wrong);
    return failure(wrong);
  }
}

function turnMenu() {
  isMenuOpen = !isMenuOpen;
  draw();
}

function turnLive() {
  remember({ isLive: !settings.isLive });
  draw();
  if (settings.isLive) look();
}

session.onlogout = () => {
  if (!session.me) return;
  session.me = null;
  note("Log in again: the token is not valid any more.", "bad");
  route();
};

addEventListener("hashchange", route);
addEventListener("storage", () => {
  reload(); // another tab was told something
  if (here) draw();
});
addEventListener("visibilitychange", () => {
  if (!document.hidden && here && settings.isLive && every() !== 0) look();
});
onKeys({ look: () => look(), turnLive, draw: () => draw() });

apply();
const box = document.createElement("div");
box.id = "notes";
document.body.append(box);
try {
  session.me = (await get("session")).me;
} catch (error) {
  session.me = null;
  if (isAway(error)) note("The server or its database is away. Reload the page in a moment.", "bad");
}
route();
