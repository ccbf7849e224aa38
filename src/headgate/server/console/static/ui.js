// Parts that pages are made of.

import { h, patch } from "./view.js";
import { ApiError } from "./api.js";
import * as f from "./format.js";

export const link = (to, ...text) => h("a", { href: "#" + to }, ...text);
export const at = (...parts) => "/" + parts.map(encodeURIComponent).join("/");
export const toStream = (s, ...more) => at("streams", s, ...more);
export const toConsumer = (s, c) => at("streams", s, "consumers", c);
export const toMessage = (s, seq) => at("streams", s, "messages", String(seq));
export const withQuery = (path, query) => path + (Object.keys(query).length ? "?" + new URLSearchParams(query) : "");

export const chip = (word, about) => h("span", { class: `chip is-${word}`, title: about || null }, word);

/** columns: [{name, show(row), number?, key?}]; `sort` is the key that is sorted by, `onsort` changes it. */
export function table(columns, rows, { empty = "Nothing here.", keyOf, sort, onsort, dense, rowClass } = {}) {
  if (!rows.length) return h("p", { class: "empty quiet" }, empty);
  return h(
    "div",
    { class: "scroll", key: "table" },
    h(
      "table",
      { class: dense ? "dense" : null },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((c) =>
            h(
              "th",
              { class: c.number ? "number" : null, "aria-sort": c.key && c.key === sort ? "descending" : null },
              c.key && onsort
                ? h("button", { class: "sort", onclick: () => onsort(c.key) }, c.name, c.key === sort ? " ↓" : "")
                : c.name,
            ),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row, i) =>
          h(
            "tr",
            { key: keyOf ? keyOf(row) : i, class: rowClass ? rowClass(row) : null },
            columns.map((c) =>
              h("td", { class: c.number ? "number" : c.wide ? "wide" : null, "data-name": c.name }, c.show(row)),
            ),
          ),
        ),
      ),
    ),
  );
}

export const tiles = (...items) =>
  h(
    "dl",
    { class: "tiles" },
    items
      .filter(Boolean)
      .map(([name, value, about, bad]) =>
        h("div", { class: bad ? "tile bad" : "tile", title: about || null }, h("dt", {}, name), h("dd", {}, value)),
      ),
  );

export const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs
      .filter((p) => p && p[1] != null)
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

export const button = (text, onclick, kind) =>
  h("button", { class: kind ? `button ${kind}` : "button", onclick, type: "button" }, text);

export const section = (title, ...children) => h("section", { class: "panel" }, h("h2", {}, title), ...children);

export const tabs = (names, chosen, choose) =>
  h(
    "div",
    { class: "tabs", role: "tablist" },
    names.map(([key, name]) =>
      h(
        "button",
        { role: "tab", "aria-selected": String(key === chosen), onclick: () => choose(key), type: "button" },
        name,
      ),
    ),
  );

export const field = (label, input, about) =>
  h("label", { class: "field" }, h("span", {}, label), input, about && h("small", { class: "quiet" }, about));

/** What makes a field show and change `state[name]`. */
export const bound = (state, name, redraw) => ({
  value: state[name],
  oninput: (e) => {
    state[name] = e.target.value;
    redraw?.();
  },
});

export function failure(error) {
  return h(
    "div",
    { class: "failure", role: "alert" },
    h("b", {}, error.message || String(error)),
    error.hint && h("p", {}, error.hint),
  );
}

// What is beside the page: notes that go away, and questions.

export function note(text, kind = "good") {
  const box = document.getElementById("notes");
  const item = document.createElement("div");
  item.className = `note ${kind}`;
  item.textContent = text;
  item.setAttribute("role", "status");
  box.append(item);
  setTimeout(() => item.remove(), kind === "bad" ? 12_000 : 5_000);
}

export function fail(error) {
  note(error instanceof ApiError ? `${error.message}${error.hint ? ` (${error.hint})` : ""}` : String(error), "bad");
}

/** Asks before something is done. `body(state, redraw)` is shown, `act(state, progress)` done; answers whether it was. */
export function ask({ title, body, action, danger, act, state = {}, ready = () => true }) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    let isBusy = false,
      error = null,
      progress = "",
      part = null,
      isClosed = false;
    const close = (done) => {
      isClosed = true;
      dialog.close();
      dialog.remove();
      resolve(done);
    };
    const go = async () => {
      if (isBusy || !ready(state)) return;
      isBusy = true;
      error = null;
      draw();
      try {
        const tell = (text, done = null) => {
          progress = text;
          part = done;
          draw();
        };
        const said = await act(state, tell, () => isClosed);
        if (said) note(said);
        close(true);
      } catch (failed) {
        error = failed;
        isBusy = false;
        draw();
      }
    };
    const draw = () =>
      patch(
        dialog,
        h(
          "form",
          {
            method: "dialog",
            onsubmit: (e) => {
              e.preventDefault();
              go();
            },
          },
          h("h2", {}, title),
          h("div", { class: "question" }, body(state, draw)),
          error && failure(error),
          progress && h("p", { class: "quiet" }, progress),
          part != null && h("progress", { value: part, max: 1, "aria-label": "Done so far" }),
          h(
            "menu",
            {},
            button(isBusy ? "Stop" : "Cancel", () => close(false)),
            h(
              "button",
              {
                class: danger ? "button danger" : "button primary",
                disabled: isBusy || !ready(state),
                type: "submit",
              },
              isBusy ? "Working…" : action,
            ),
          ),
        ),
      );
    dialog.addEventListener("cancel", (e) => {
      e.preventDefault();
      close(false);
    });
    document.body.append(dialog);
    draw();
    dialog.showModal();
  });
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  note("Copied.");
}

const quoted = (s) => `'${String(s).replaceAll("'", "'\\''")}'`;

/** One call in four languages: {method, path, body, cli: [words], sql: [function, args, {named}], python: text}. */
export function copies({ method = "GET", path, body, cli, sql, python }) {
  const base = location.href.split("#")[0].replace(/\/$/, "");
  const curl = [
    "curl",
    method !== "GET" && `-X ${method}`,
    '-H "Authorization: Bearer $HEADGATE_TOKEN"',
    body !== undefined && `-H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`,
    quoted(`${base}/${path}`),
  ]
    .filter(Boolean)
    .join(" ");
  return h(
    "details",
    { class: "copies" },
    h("summary", {}, "Copy as…"),
    h(
      "div",
      { class: "menu" },
      button("curl", () => copy(curl)),
      cli &&
        button("CLI", () => copy("headgate " + cli.map((w) => (/^[\w.@:/-]+$/.test(w) ? w : quoted(w))).join(" "))),
      sql &&
        button("SQL", () =>
          copy(
            typeof sql === "string"
              ? sql
              : `select * from headgate.${sql[0]}(${[...sql[1].map(f.literal), ...Object.entries(sql[2] || {}).map(([k, v]) => `${k} => ${v}`)].join(", ")});`,
          ),
        ),
      python && button("Python", () => copy(python)),
    ),
  );
}
