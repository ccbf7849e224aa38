// Search in a stream: by key, time, seq and text; or watch what comes in.

import { h } from "../view.js";
import { get, streamPath } from "../api.js";
import { button, copies, copy, failure, link } from "../ui.js";
import { messageTable } from "./stream.js";
import { picker } from "../picker.js";
import { saving } from "../saving.js";
import * as f from "../format.js";

const PAGE = 50;
const SHOWN = 400; // characters of data in a row
const TAILED = 200; // messages that the tail keeps

/** What the API is asked for. */
const asked = (q) => ({
  key_pattern: q.key,
  text: q.text,
  since: q.from,
  until: q.to,
  after: q.after,
  before: q.before,
  sort: q.sort === "oldest" ? "seq_asc" : "seq_desc",
});

async function search(ctx) {
  const path = streamPath(ctx.query.stream, "messages");
  return get(path, { ...asked(ctx.query), limit: PAGE, data_limit: SHOWN }, { whole: true, signal: ctx.signal });
}

/** What has come since the last look, newest first. */
async function tail(ctx) {
  const { state, query: q } = ctx;
  const path = streamPath(q.stream, "messages");
  const key = JSON.stringify([q.stream, q.key, q.text]);
  if (state.tailKey !== key) {
    const [newest] = await get(path, { limit: 1, sort: "seq_desc", data_limit: 1 });
    Object.assign(state, { tailKey: key, tailAfter: newest ? newest.seq : 0, tailed: [] });
  }
  const { data: come, next } = await get(
    path,
    { key_pattern: q.key, text: q.text, sort: "seq_asc", limit: TAILED, after: state.tailAfter, data_limit: SHOWN },
    { whole: true },
  );
  if (next || come.length) state.tailAfter = Math.max(next || 0, come.at(-1)?.seq || 0);
  state.tailed = [...come.reverse(), ...state.tailed].slice(0, TAILED);
  return { data: state.tailed };
}

function filters(ctx) {
  const q = ctx.query;
  const isTail = q.tail === "on";
  const filter = (change) => ctx.set({ after: "", before: "", ...change }, { replace: false });
  const time = (label, name) =>
    h(
      "label",
      {},
      label,
      h("input", {
        type: "datetime-local",
        step: 1,
        value: q[name] ? local(q[name]) : "",
        disabled: isTail,
        onchange: (e) => filter({ [name]: e.target.value ? new Date(e.target.value).toISOString() : "" }),
      }),
    );
  const text = (label, name, placeholder) =>
    h(
      "label",
      {},
      label,
      h("input", {
        type: "search",
        placeholder,
        value: q[name] || "",
        onchange: (e) => filter({ [name]: e.target.value }),
      }),
    );
  return h(
    "section",
    { class: "panel filters" },
    picker(ctx.state, {
      label: "Stream",
      value: q.stream,
      found: (all) => all.streams.map((s) => s.name),
      choose: (stream) => filter({ stream }),
    }),
    text("Key", "key", "orders.*.large.>"),
    text("Text in it", "text", "in data or headers"),
    time("Since", "from"),
    time("Until", "to"),
    h(
      "label",
      { class: "narrow" },
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
  );
}

function found(ctx, rows, next) {
  const q = ctx.query;
  const isForward = q.sort === "oldest";
  const goOn = (seq) =>
    ctx.set(isForward ? { after: seq, before: "" } : { before: seq, after: "" }, { replace: false });
  const page = (seq) => () => goOn(seq);
  return h(
    "section",
    { class: "panel" },
    q.tail === "on"
      ? h(
          "p",
          { class: "quiet" },
          rows.length
            ? `${f.count(rows.length)} since the tail was opened, newest first`
            : "Waiting for what comes…",
        )
      : next != null &&
          rows.length < PAGE &&
          h(
            "p",
            { class: "quiet" },
            `${f.count(rows.length)} found. It was looked at as far as message ${f.count(next)}. `,
            button("Look further", page(next), "small"),
          ),
    q.tail !== "on" || rows.length ? messageTable(q.stream, rows) : null,
    q.tail !== "on" &&
      h(
        "div",
        { class: "pager" },
        (q.after || q.before) && button("To the first page", () => ctx.set({ after: "", before: "" }), "small"),
        rows.length >= PAGE && button("More", page(rows.at(-1).seq), "small"),
        button("Copy the address", () => copy(location.href), "small"),
      ),
  );
}

export default {
  name: "messages",
  title: (ctx) => (ctx.query.stream ? `Messages of ${ctx.query.stream}` : "Messages"),
  /** Only the newest change by themselves; a search is costly, and looked at once. */
  every: ({ data, query: q }) =>
    !data?.error && (q.tail === "on" || !(q.text || q.before || q.after)) ? 2000 : 0,
  async load(ctx) {
    if (!ctx.query.stream) return { rows: null };
    try {
      const answer = ctx.query.tail === "on" ? await tail(ctx) : await search(ctx);
      return { rows: answer.data, next: answer.next };
    } catch (error) {
      if (error.status !== 404 && error.status !== 422) throw error;
      return { error, rows: null }; // what was typed is still there to be mended
    }
  },
  view(ctx, { rows, next, error }) {
    const q = ctx.query;
    const query = Object.fromEntries(Object.entries({ ...asked(q), limit: PAGE }).filter(([, v]) => v));
    return [
      h(
        "div",
        { class: "title" },
        h("h1", {}, "Messages"),
        h("span", { class: "grow" }),
        rows?.length > 0 && q.tail !== "on" && saving(q.stream, asked(q)),
        q.stream &&
          !error &&
          copies({
            path: streamPath(q.stream, "messages") + "?" + new URLSearchParams(query),
            cli: [
              ...["message", "list", q.stream, "--limit", String(PAGE)],
              ...(q.key ? ["--filter", q.key] : []),
              ...(q.sort === "oldest" ? [] : ["--newest"]),
            ],
            sql: [
              "messages",
              [q.stream, PAGE],
              {
                newest_first: String(q.sort !== "oldest"),
                ...(q.key ? { filter: `array[${f.literal(q.key)}]` } : {}),
                ...(q.before ? { before: q.before } : {}),
                ...(q.after ? { after: q.after } : {}),
              },
            ],
            python: `hg.stream(${JSON.stringify(q.stream)}).messages(${PAGE}, newest_first=${q.sort === "oldest" ? "False" : "True"}${q.key ? `, filter=${JSON.stringify(q.key)}` : ""})`,
          }),
      ),
      filters(ctx),
      error && failure(error),
      rows
        ? found(ctx, rows, next)
        : !error &&
          h(
            "p",
            { class: "quiet empty" },
            "Choose a stream: type a part of its name, or take one from ",
            link("/streams", "the list"),
            ".",
          ),
    ];
  },
};

function local(text) {
  const d = new Date(text);
  if (isNaN(d)) return ""; // whoever wrote the address
  return new Date(d - d.getTimezoneOffset() * 60e3).toISOString().slice(0, 19);
}
