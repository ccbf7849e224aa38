// What keys do where nobody types; `?` shows them.

import { h, patch } from "./view.js";
import { NAVIGATION } from "./frame.js";
import { openPalette } from "./palette.js";

const SOON = 1500; // milliseconds after g in which a letter says where to
let goingAt = 0;

export function onKeys({ look, turnLive }) {
  addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (target.closest?.("input, textarea, select, dialog, [contenteditable]") || event.altKey) return;
    if (event.metaKey || event.ctrlKey) {
      if (key !== "k") return;
      event.preventDefault();
      return openPalette();
    }
    const act = { "/": openPalette, "?": help, j: () => step(1), k: () => step(-1), r: look }[key];
    if (Date.now() - goingAt < SOON && key !== "g") {
      goingAt = 0;
      const to = NAVIGATION.find(([, , letter, allowed]) => letter === key && (!allowed || allowed()));
      if (to) location.hash = to[0];
    } else if (key === "g") goingAt = Date.now();
    else if (key === " " && target === document.body) {
      event.preventDefault();
      turnLive();
    } else if (act) {
      event.preventDefault();
      act();
    }
  });
}

/** To the next or the last row's link; Enter follows it. */
function step(by) {
  const links = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
  const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  links[Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}

export function help() {
  if (document.querySelector("dialog")) return;
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", "Keys");
  const row = (keys, text) => h("tr", {}, h("td", {}, keys.map((k) => [h("kbd", {}, k), " "])), h("td", {}, text));
  const close = () => dialog.remove();
  patch(dialog, [
    h("h2", {}, "Keys"),
    h(
      "table",
      { class: "keys" },
      h("tbody", {}, [
        row(["/", "Ctrl K"], "Search, jump, or do something"),
        row(["space"], "Stop or start the live updates"),
        row(["r"], "Look again now"),
        row(["j", "k"], "Next row, row before; Enter opens it"),
        NAVIGATION.filter(([, , , allowed]) => !allowed || allowed()).map(([, text, letter]) =>
          row(["g", letter], text),
        ),
        row(["Esc"], "Close a question"),
      ]),
    ),
    h("menu", {}, h("button", { class: "button", type: "button", onclick: close }, "Close")),
  ]);
  dialog.addEventListener("close", close);
  document.body.append(dialog);
  dialog.showModal();
}
