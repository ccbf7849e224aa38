// Search in a stream: by key, time, seq and text; or watch what comes in.

import { h } from "../view.js";
import { get, streamPath } from "../api.js";
import { button, copy, note } from "../ui.js";
import { messageTable } from "./stream.js";
import * as f from "../format.js";

const PAGE = 50;
const LOOKED = 5000; // messages that one search for text reads

async function search(ctx) {
  const q = ctx.query;
  const path = streamPath(q.stream, "messages");
  const isForward = q.sort === "oldest" || q.tail === "on";
  let { after, before } = q;
  if (q.from && !after && !before) {
    const { seq } = await get(streamPath(q.stream, "position"), { at: q.from });
    if (isForward) after = seq - 1;
    else ctx.state.floor = seq;
  }
  const common = { key_pattern: q.key, sort: isForward ? "seq_asc" : "seq_desc" };
  if (!q.text)
    return (
      await get(path, {
        ...common,
        limit: PAGE,
        after: after ?? (q.from && !isForward ? ctx.state.floor - 1 : undefined),
        before,
      })
    ).slice(0, PAGE);
  const found = [];
  const wanted = q.text.toLowerCase();
  let looked = 0;
  while (found.length < PAGE && looked < LOOKED) {
    const page = await get(path, { ...common, limit: 500, after, before });
    looked += page.length;
    found.push(...page.filter((m) => (f.json(m.data) + f.json(m.headers)).toLowerCase().includes(wanted)));
    if (page.length < 500) break;
    if (isForward) after = page.at(-1).seq;
    else before = page.at(-1).seq;
  }
  ctx.state.looked = looked;
  return found.slice(0, PAGE);
}

/** What has come since the last look, newest first, of at most 200. */
async function tail(ctx) {
  const { state, query: q } = ctx;
  const path = streamPath(q.stream, "messages");
  const key = JSON.stringify([q.stream, q.key, q.text]);
  if (state.tailKey !== key) {
    const [newest] = await get(path, { limit: 1, sort: "seq_desc" });
    Object.assign(state, { tailKey: key, tailAfter: newest ? newest.seq : 0, tailed: [] });
  }
  const come = await get(path, { key_pattern: q.key, sort: "seq_asc", limit: 200, after: state.tailAfter });
  if (come.length) state.tailAfter = come.at(-1).seq;
  const wanted = (q.text || "").toLowerCase();
  const fitting = come.filter((m) => !wanted || (f.json(m.data) + f.json(m.headers)).toLowerCase().includes(wanted));
  state.tailed = [...fitting.reverse(), ...state.tailed].slice(0, 200);
  return state.tailed;
}

const FORMS = {
  NDJSON: (rows) => rows.map((m) => f.json(m).replace(/\n\s*/g, " ")).join("\n"),
  CSV: (rows) =>
    [
      "seq,created_at,key,data",
      ...rows.map((m) =>
        [m.seq, m.created_at, m.key ?? "", f.json(m.data).replace(/\n\s*/g, " ")].map(cell).join(","),
      ),
    ].join("\n"),
};
// (what begins like a formula is none in a spreadsheet)
const cell = (v) =>
  `"${String(v)
    .replace(/^[=+\-@]/, "'$&")
    .replaceAll('"', '""')}"`;

function save(name, text) {
  const a = document.createElement("a");
  a.href = "data:text/plain;charset=utf-8," + encodeURIComponent(text);
  a.download = name;
  a.click();
  note(`${name} is saved.`);
}

export default {
  name: "messages",
  title: (ctx) => (ctx.query.stream ? `Messages of ${ctx.query.stream}` : "Messages"),
  async load(ctx) {
    const { streams } = await get("api/overview", { limit: 1000, sort: "name" });
    const names = streams.map((s) => s.name);
    if (!ctx.query.stream) return { names, rows: null };
    return { names, rows: ctx.query.tail === "on" ? await tail(ctx) : await search(ctx) };
  },
  view(ctx, { names, rows }) {
    const q = ctx.query;
    const filter = (change) => ctx.set({ after: "", before: "", ...change });
    const isForward = q.sort === "oldest";
    const isTail = q.tail === "on";
    return [
      h(
        "div",
        { class: "title" },
        h("h1", {}, "Messages"),
        h("span", { class: "grow" }),
        rows?.length > 0 &&
          Object.keys(FORMS).map((form) =>
            button(`Save ${form}`, () => save(`${q.stream}.${form.toLowerCase()}`, FORMS[form](rows)), "small"),
          ),
      ),
      h(
        "section",
        { class: "panel filters" },
        h(
          "label",
          {},
          "Stream",
          h(
            "select",
            { value: q.stream || "", onchange: (e) => filter({ stream: e.target.value }) },
            h("option", { value: "" }, "choose…"),
            names.map((n) => h("option", { value: n }, n)),
          ),
        ),
        h(
          "label",
          {},
          "Key",
          h("input", {
            type: "search",
            placeholder: "orders.*.large.>",
            value: q.key || "",
            onchange: (e) => filter({ key: e.target.value }),
          }),
        ),
        h(
          "label",
          {},
          "Text in it",
          h("input", { type: "search", value: q.text || "", onchange: (e) => filter({ text: e.target.value }) }),
        ),
        h(
          "label",
          {},
          "Since",
          h("input", {
            type: "datetime-local",
            step: 1,
            value: q.from ? local(q.from) : "",
            onchange: (e) => filter({ from: e.target.value ? new Date(e.target.value).toISOString() : "" }),
          }),
        ),
        h(
          "label",
          {},
          "Go to seq",
          h("input", {
            type: "number",
            min: 1,
            onchange: (e) =>
              e.target.value && ctx.go(`/streams/${encodeURIComponent(q.stream)}/messages/${e.target.value}`),
            disabled: !q.stream,
          }),
        ),
        h(
          "label",
          {},
          "Order",
          h(
            "select",
            {
              value: q.sort || "newest",
              onchange: (e) => filter({ sort: e.target.value === "newest" ? "" : e.target.value }),
              disabled: isTail,
            },
            h("option", { value: "newest" }, "newest first"),
            h("option", { value: "oldest" }, "oldest first"),
          ),
        ),
        q.stream &&
          button(
            isTail ? "Stop the tail" : "Live tail",
            () => filter({ tail: isTail ? "" : "on" }),
            isTail ? "primary" : "",
          ),
      ),
      !rows
        ? h("p", { class: "quiet empty" }, "Choose a stream.")
        : h(
            "section",
            { class: "panel" },
            isTail &&
              h(
                "p",
                { class: "quiet" },
                rows.length
                  ? `${f.count(rows.length)} since the tail was opened, newest first`
                  : "Waiting for what comes…",
              ),
            !isTail &&
              q.text &&
              h(
                "p",
                { class: "quiet" },
                `${f.count(rows.length)} found in the ${f.count(ctx.state.looked)} messages that were looked at.`,
              ),
            !isTail || rows.length ? messageTable(q.stream, rows) : null,
            !isTail &&
              h(
                "div",
                { class: "pager" },
                (q.after || q.before) && button("To the first page", () => filter({}), "small"),
                rows.length >= PAGE &&
                  button(
                    "More",
                    () =>
                      ctx.set(
                        isForward ? { after: rows.at(-1).seq, before: "" } : { before: rows.at(-1).seq, after: "" },
                        { replace: false },
                      ),
                    "small",
                  ),
                button("Copy the address", () => copy(location.href), "small"),
              ),
          ),
    ];
  },
};

function local(text) {
  const d = new Date(text);
  return new Date(d - d.getTimezoneOffset() * 60e3).toISOString().slice(0, 19);
}
