// What is around a page: the top with its settings, the pages to go to, and what is wrong with all of it.

import { h } from "./view.js";
import { call, session, isAdmin, isForAll, may } from "./api.js";
import { settings, remember } from "./settings.js";
import { failure, note } from "./ui.js";
import { openPalette } from "./palette.js";

export const NAVIGATION = [
  ["/", "Overview", "o"],
  ["/streams", "Streams", "s"],
  ["/messages", "Messages", "m"],
  ["/dead", "Dead letters", "d"],
  ["/tenants", "Tenants", "t"],
  ["/push", "Push", "p"],
  ["/sources", "Sources", "c", isForAll],
  ["/pipelines", "Pipelines", "i", isForAll],
  ["/tokens", "Tokens", "k", () => isAdmin() && isForAll()],
  ["/audit", "Audit", "a", () => isAdmin() && isForAll()],
  ["/doctor", "Doctor", "h", isForAll],
];
const TIMES = { local: "Local time", UTC: "UTC", relative: "Relative" };
const THEMES = { system: "System", light: "Light", dark: "Dark" };

export function frame({ path, name, isMenuOpen, turnMenu, draw, turnLive, away, problem, body }) {
  const [place, colour] = (session.me?.environment || "").split(":");
  return h(
    "div",
    { key: "frame", class: isMenuOpen ? "frame is-open" : "frame" },
    h("a", { class: "skip", href: "#", onclick: skip }, "Skip to the page"),
    h(
      "header",
      { class: colour ? `top has-${colour}` : "top" },
      h("button", { class: "burger", "aria-label": "Menu", "aria-expanded": String(isMenuOpen), onclick: turnMenu }, "☰"),
      h(
        "a",
        { class: "brand", href: "#/", "aria-label": "Headgate" },
        h("img", { src: "console/icon.svg", alt: "", width: 20, height: 20 }),
        h("span", {}, "Headgate"),
      ),
      place && h("b", { class: `place has-${colour || "grey"}` }, place),
      h("button", { class: "search", onclick: openPalette }, h("span", {}, "Search or jump to…"), h("kbd", {}, "/")),
      h("span", { class: "grow" }),
      !may("admin") && h("span", { class: "chip", title: "This token can look, and change nothing." }, "read only"),
      h(
        "button",
        {
          class: settings.isLive ? "live is-on" : "live",
          title: "Live updates (space)",
          "aria-pressed": String(settings.isLive),
          onclick: turnLive,
        },
        settings.isLive ? "Live" : "Paused",
      ),
      h("span", { class: "wide-only" }, preferences(draw)),
      session.me?.auth &&
        h("button", { class: "button small wide-only", onclick: logout, title: session.me.name }, "Log out"),
    ),
    h(
      "nav",
      { "aria-label": "Pages" },
      NAVIGATION.filter(([, , , allowed]) => !allowed || allowed()).map(([to, text]) =>
        h("a", { href: "#" + to, "aria-current": isCurrent(path, to) ? "page" : null }, text),
      ),
      h("div", { class: "narrow-only" }, preferences(draw)),
      session.me?.auth && h("button", { class: "button small narrow-only", onclick: logout }, "Log out"),
      h("p", { class: "quiet version" }, session.me && `version ${session.me.version}`),
      h("p", { class: "quiet version wide-only" }, h("kbd", {}, "?"), " keys"),
    ),
    h(
      "main",
      { class: `page-${name || "x"}`, tabindex: -1 },
      away &&
        h(
          "div",
          { class: "away", role: "alert" },
          away.status === 0 ? "The server does not answer." : "The database is away.",
          " What you see is how it was; this page tries again by itself.",
        ),
      problem && failure(problem),
      body,
    ),
  );
}

const preferences = (draw) => [
  choice("Times", TIMES, settings.time, (time) => remember({ time }), draw),
  choice("Colours", THEMES, settings.theme, (theme) => remember({ theme }), draw),
];

const choice = (label, texts, value, choose, draw) =>
  h(
    "select",
    {
      "aria-label": label,
      title: label,
      value,
      onchange: (e) => {
        choose(e.target.value);
        draw();
      },
    },
    Object.entries(texts).map(([v, text]) => h("option", { value: v }, text)),
  );

const isCurrent = (path, to) => (to === "/" ? path === "/" || path === "" : path === to || path.startsWith(to + "/"));

function skip(event) {
  event.preventDefault();
  document.querySelector("main").focus();
}

export async function logout() {
  try {
    await call("POST", "logout");
  } catch {
    note("The server did not answer: this browser still holds the token.", "bad");
    return;
  }
  session.me = null;
  location.hash = "/login";
}
