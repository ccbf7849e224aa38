// Data of a message: JSON that folds, or the text itself, or what base64 stands for. It is drawn once and then left
// alone: data does not change, and may be large.

import { h, patch } from "./view.js";
import { Big } from "./api.js";
import { button, copy } from "./ui.js";
import * as f from "./format.js";

const STEP = 200; // entries of a list that are drawn at once
const LONGEST = 64 * 1024; // characters of one text that are drawn at once
const BASE64 = /^(?=.{8})(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** `cut`: the data has so many characters, and these are the first; `all` fetches the others. */
export function payload(value, { cut, all } = {}) {
  const text = typeof value === "string" ? value : f.json(value);
  const state = { view: value !== null && typeof value === "object" && !(value instanceof Big) ? "tree" : "raw" };
  return h("div", {
    class: "payload",
    key: `${cut || ""} ${text}`,
    opaque: true,
    onmake: (node) => draw(node, { value, text, cut, all, state }),
  });
}

function draw(node, about) {
  const { value, text, cut, all, state } = about;
  const views = [
    value !== null && typeof value === "object" && ["tree", "Tree"],
    ["raw", typeof value === "string" ? "Text" : "JSON"],
    typeof value === "string" && !cut && BASE64.test(value) && ["base64", "From base64"],
  ].filter(Boolean);
  const choose = (view) => {
    state.view = view;
    draw(node, about);
  };
  patch(node, [
    h(
      "div",
      { class: "views" },
      views.length > 1 &&
        views.map(([key, name]) =>
          h(
            "button",
            { type: "button", "aria-pressed": String(key === state.view), onclick: () => choose(key) },
            name,
          ),
        ),
      h("span", { class: "grow" }),
      h("small", { class: "quiet" }, f.count(cut || text.length), " characters"),
      h("button", { type: "button", title: "Copy the data", onclick: () => copy(text) }, "Copy"),
    ),
    state.view === "tree"
      ? h("div", { class: "data tree", key: "tree" }, branch(value, 0))
      : h("pre", { class: "data", key: state.view }, long(state.view === "raw" ? text : fromBase64(value))),
    cut &&
      h(
        "p",
        { class: "quiet" },
        `The first ${f.count(text.length)} characters. `,
        all && button("Show all", () => all(), "small"),
      ),
  ]);
}

const long = (text) =>
  text.length <= LONGEST
    ? text
    : [text.slice(0, LONGEST), h("i", { class: "quiet" }, ` … ${f.count(text.length - LONGEST)} more; Copy has all`)];

function fromBase64(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  try {
    const found = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    // eslint-disable-next-line no-control-regex
    if (!/[\x00-\x08\x0e-\x1f]/.test(found)) return found;
  } catch {
    // then it is no text
  }
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, 4096); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const hex = part.map((b) => b.toString(16).padStart(2, "0")).join(" ");
    const seen = part.map((b) => (b > 31 && b < 127 ? String.fromCharCode(b) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${seen}`);
  }
  if (bytes.length > 4096) lines.push(`… ${f.count(bytes.length)} bytes`);
  return lines.join("\n");
}

/** What is below a folded line is made when it is opened: neither depth nor size costs anything before. */
function branch(value, depth) {
  if (value === null || typeof value !== "object" || value instanceof Big)
    return h("span", { class: `json-${value === null ? "null" : typeof value}` }, long(f.json(value)));
  const isList = Array.isArray(value);
  const keys = isList ? null : Object.keys(value);
  const size = isList ? value.length : keys.length;
  const [open, close] = isList ? "[]" : "{}";
  if (!size) return h("span", {}, open + close);
  const entry = (i) => {
    const key = isList ? null : keys[i];
    return h(
      "li",
      {},
      key != null && h("span", { class: "json-key" }, JSON.stringify(key), ": "),
      branch(value[isList ? i : key], depth + 1),
    );
  };
  const fill = (list, upTo) => {
    list.drawn = upTo;
    patch(list, [
      Array.from({ length: Math.min(upTo, size) }, (_, i) => entry(i)),
      upTo < size &&
        h(
          "li",
          { key: "more" },
          button(`${f.count(size - upTo)} more`, () => fill(list, upTo + STEP * 5), "small"),
        ),
    ]);
  };
  return h(
    "details",
    {
      onmake: (node) => (node.open = depth < 3 && size <= STEP),
      ontoggle: (e) => {
        const list = e.currentTarget.querySelector("ul");
        if (e.currentTarget.open && !list.drawn) fill(list, STEP);
      },
    },
    h("summary", {}, open, h("span", { class: "quiet" }, ` ${f.count(size)} `)),
    h("ul", { opaque: true }),
    close,
  );
}
