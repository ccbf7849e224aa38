// The frame around the pages: who is logged in, which page, and how often it looks again.

import { h, patch } from "./view.js";
import { call, get, session, isAdmin, may } from "./api.js";
import { settings, remember, apply } from "./settings.js";
import { link, failure, note } from "./ui.js";
import { openPalette } from "./palette.js";
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
const NAVIGATION = [
  ["/", "Overview"],
  ["/streams", "Streams"],
  ["/messages", "Messages"],
  ["/dead", "Dead letters"],
  ["/tenants", "Tenants"],
  ["/push", "Push"],
  ["/sources", "Sources"],
  ["/pipelines", "Pipelines"],
  ["/tokens", "Tokens", isAdmin],
  ["/audit", "Audit", isAdmin],
  ["/doctor", "Doctor"],
];
const EVERY = 2000; // milliseconds between looks

let here = null; // { page, params, query, state, data, error, number }
let timer = null;
let isAway = false;
let isMenuOpen = false;

function find() {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  for (const [pattern, page] of PAGES) {
    const wanted = pattern.split("/").filter(Boolean);
    if (wanted.length !== parts.length || !wanted.every((w, i) => w[0] === ":" || w === parts[i])) continue;
    const params = Object.fromEntries(wanted.flatMap((w, i) => (w[0] === ":" ? [[w.slice(1), parts[i]]] : [])));
    return { page, pattern, path, params, query: Object.fromEntries(new URLSearchParams(query || "")) };
  }
  return {
    page: {
      title: () => "Nothing",
      view: () => h("p", {}, "There is no such page. ", link("/", "To the overview.")),
    },
    path,
    params: {},
    query: {},
  };
}

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
    location.replace("#/login" + (found.path !== "/" ? `?next=${encodeURIComponent(location.hash.slice(1))}` : ""));
    return;
  }
  const isSame = here && here.page === found.page && here.path === found.path;
  here = {
    ...found,
    state: isSame ? here.state : {},
    data: isSame ? here.data : null,
    error: null,
    number: (here?.number || 0) + 1,
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

async function look() {
  clearTimeout(timer);
  const now = here;
  if (!now.page.load) return draw();
  let data,
    error = null;
  try {
    data = await now.page.load(ctx);
  } catch (failed) {
    error = failed;
  }
  if (here.number !== now.number) return;
  isAway = !!error && (error.status === 0 || error.status === 503);
  if (error) here.error = error;
  else Object.assign(here, { data, error: null });
  draw();
  clearTimeout(timer);
  timer = setTimeout(tick, now.page.every || EVERY);
}

function tick() {
  if (settings.isLive && !document.hidden && here.page.every !== 0) look();
  else timer = setTimeout(tick, EVERY);
}

function draw() {
  const { page } = here;
  const name = page.title?.(ctx) || "";
  document.title = name ? `${name} · Headgate` : "Headgate";
  let body;
  if (here.error && !here.data) body = failure(here.error);
  else if (page.load && !here.data) body = h("p", { class: "quiet loading" }, "Looking…");
  else body = page.view(ctx, here.data);
  if (page.isBare) return patch(document.getElementById("app"), h("div", { key: "bare" }, body));
  patch(
    document.getElementById("app"),
    h(
      "div",
      { key: "frame", class: isMenuOpen ? "frame is-open" : "frame" },
      h(
        "header",
        { class: settings.colour ? `top has-${settings.colour}` : "top" },
        h(
          "button",
          {
            class: "burger",
            "aria-label": "Menu",
            onclick: () => {
              isMenuOpen = !isMenuOpen;
              draw();
            },
          },
          "☰",
        ),
        h(
          "a",
          { class: "brand", href: "#/" },
          h("img", { src: "console/icon.svg", alt: "", width: 20, height: 20 }),
          "Headgate",
        ),
        h("button", { class: "search", onclick: openPalette }, "Search or jump to…", h("kbd", {}, "/")),
        h("span", { class: "grow" }),
        !may("admin") && h("span", { class: "chip", title: "This token can look, and change nothing." }, "read only"),
        h(
          "button",
          {
            class: settings.isLive ? "live is-on" : "live",
            title: "Live updates (space)",
            "aria-pressed": String(settings.isLive),
            onclick: toggleLive,
          },
          settings.isLive ? "Live" : "Paused",
        ),
        h(
          "select",
          {
            "aria-label": "Times",
            value: settings.time,
            onchange: (e) => {
              remember({ time: e.target.value });
              draw();
            },
          },
          ["local", "UTC", "relative"].map((t) => h("option", { value: t }, t)),
        ),
        h(
          "select",
          {
            "aria-label": "Colours",
            value: settings.theme,
            onchange: (e) => {
              remember({ theme: e.target.value });
              draw();
            },
          },
          ["system", "light", "dark"].map((t) => h("option", { value: t }, t)),
        ),
        session.me?.auth &&
          h("button", { class: "button small", onclick: logout, title: session.me.name }, "Log out"),
      ),
      h(
        "nav",
        { "aria-label": "Pages" },
        NAVIGATION.filter(([, , allowed]) => !allowed || allowed()).map(([to, text]) =>
          h("a", { href: "#" + to, "aria-current": isCurrent(to) ? "page" : null }, text),
        ),
        h("p", { class: "quiet version" }, session.me && `version ${session.me.version}`),
      ),
      h(
        "main",
        { class: `page-${page.name || "x"}` },
        isAway &&
          h(
            "div",
            { class: "away", role: "alert" },
            here.error.status === 0
              ? "The server does not answer. What you see is how it was; this page tries again."
              : "The database is away. What you see is how it was; this page tries again.",
          ),
        here.error && here.data && !isAway && failure(here.error),
        body,
      ),
    ),
  );
}

const isCurrent = (to) =>
  to === "/" ? here.path === "/" || here.path === "" : here.path === to || here.path.startsWith(to + "/");

function toggleLive() {
  remember({ isLive: !settings.isLive });
  draw();
  if (settings.isLive) look();
}

async function logout() {
  try {
    await call("POST", "logout");
  } catch {
    // the cookie stays until the server answers
  }
  session.me = null;
  location.hash = "/login";
}

session.onlogout = () => {
  if (!session.me) return;
  session.me = null;
  note("Log in again: the token is not valid any more.", "bad");
  route();
};

addEventListener("hashchange", route);
addEventListener("visibilitychange", () => {
  if (!document.hidden && here && settings.isLive && here.page.every !== 0) look();
});
addEventListener("keydown", (event) => {
  if (
    event.target.closest?.("input, textarea, select, dialog, [contenteditable]") ||
    (event.metaKey && event.key !== "k") ||
    event.altKey
  )
    return;
  if (event.key === "/" || (event.key === "k" && (event.metaKey || event.ctrlKey))) {
    event.preventDefault();
    openPalette();
  } else if (event.ctrlKey) return;
  else if (event.key === " " && event.target === document.body) {
    event.preventDefault();
    toggleLive();
  } else if (event.key === "r") look();
  else if (event.key === "g") here.state.isGoing = Date.now();
  else if (Date.now() - (here?.state.isGoing || 0) < 1500) {
    const to = { o: "/", s: "/streams", m: "/messages", d: "/dead", t: "/tenants" }[event.key];
    if (to) location.hash = to;
  }
});

apply();
const box = document.createElement("div");
box.id = "notes";
document.body.append(box);
try {
  session.me = (await get("session")).me;
} catch {
  session.me = null;
}
route();
