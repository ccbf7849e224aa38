// One stream: throughput, consumers, segments, settings.

import { h } from "../view.js";
import { get, post, patch, remove, streamPath, isAdmin, may } from "../api.js";
import { link, toConsumer, toMessage, chip, table, tiles, button, ask, field, facts, tabs, copies } from "../ui.js";
import { chart } from "../charts.js";
import { charts, MINUTES } from "../history.js";
import { consumerColumns } from "./overview.js";
import { kept } from "./streams.js";
import * as f from "../format.js";

export function send(stream, { data = '{"hello": "world"}', key = "", headers = "", title = `Send to ${stream}`, done } = {}) {
  const state = { data, key, channel: "", headers };
  return ask({
    title, action: "Send", state,
    body: (s, redraw) => [
      field("Key", h("input", { value: s.key, oninput: (e) => { s.key = e.target.value; } })),
      field("Channel", h("input", { value: s.channel, oninput: (e) => { s.channel = e.target.value; } })),
      field("Data, as JSON", h("textarea", { rows: 8, spellcheck: "false", value: s.data, oninput: (e) => { s.data = e.target.value; redraw(); } }), isJson(s.data) ? "" : "This is not JSON: it is sent as text."),
      field("Headers, as JSON", h("textarea", { rows: 2, spellcheck: "false", value: s.headers, oninput: (e) => { s.headers = e.target.value; } })),
      s.data !== data && title.startsWith("Edit") && difference(data, s.data),
    ],
    act: async (s) => {
      // the text itself is sent, so that large integers stay what they are
      const text = isJson(s.data) ? s.data : JSON.stringify(s.data);
      const more = JSON.stringify({ key: s.key || null, channel: s.channel || null, headers: s.headers ? JSON.parse(s.headers) : null });
      const answer = await post(streamPath(stream, "messages"), `{"messages":[{"data":${text},${more.slice(1)}]}`);
      const said = await done?.(answer.seqs[0]);
      return said || `Sent as ${answer.seqs[0]}.`;
    },
  });
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** What was and what is, line by line. */
export function difference(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  const gone = a.filter((l) => !b.includes(l)), come = b.filter((l) => !a.includes(l));
  return h("pre", { class: "data diff" }, gone.map((l) => h("div", { class: "minus" }, "- " + l)), come.map((l) => h("div", { class: "plus" }, "+ " + l)));
}

function addConsumer(ctx, stream) {
  return ask({
    title: `New consumer of ${stream}`, action: "Make it", state: { name: "", filter: "", order: "none", start: "beginning", max_deliver: "" }, ready: (s) => s.name,
    body: (s, redraw) => [
      field("Name", h("input", { value: s.name, required: true, oninput: (e) => { s.name = e.target.value; redraw(); } })),
      field("Filter", h("input", { value: s.filter, placeholder: "orders.>", oninput: (e) => { s.filter = e.target.value; } }), "A pattern of keys: * is one part, > the rest. Empty: all"),
      field("Order", h("select", { value: s.order, onchange: (e) => { s.order = e.target.value; redraw(); } }, [["none", "none"], ["key", "by key: one message of a key at a time"]].map(([v, t]) => h("option", { value: v }, t)))),
      field("Start", h("select", { value: s.start, onchange: (e) => { s.start = e.target.value; redraw(); } }, ["beginning", "end"].map((v) => h("option", { value: v }, v)))),
      field("Attempts before it is a dead letter", h("input", { type: "number", min: 1, value: s.max_deliver, oninput: (e) => { s.max_deliver = e.target.value; } }), "Empty: it is tried for ever"),
    ],
    act: async (s) => {
      await post(streamPath(stream, "consumers"), { name: s.name, filter: s.filter || null, order: s.order, start: s.start, max_deliver: s.max_deliver ? Number(s.max_deliver) : null });
      ctx.go(toConsumer(stream, s.name));
      return `The consumer ${s.name} is there.`;
    },
  });
}

function drop(ctx, stream) {
  return ask({
    title: `Remove the stream ${stream}?`, action: "Remove it", danger: true, state: { typed: "" }, ready: (s) => s.typed === stream,
    body: (s, redraw) => [h("p", {}, "Its messages, its consumers with their progress, and its dead letters go, and do not come back."), field(`Type ${stream} to say that you mean it`, h("input", { value: s.typed, oninput: (e) => { s.typed = e.target.value; redraw(); } }))],
    act: async () => { await remove(streamPath(stream)); ctx.go("/streams"); return `${stream} is gone.`; },
  });
}

function edit(ctx, s) {
  const old = { retain: s.retain, hours: s.retain_up_to_ms == null ? "" : s.retain_up_to_ms / 3600e3, megabytes: s.max_storage == null ? "" : s.max_storage / 2 ** 20 };
  return ask({
    title: `Retention of ${s.name}`, action: "Change it", state: { ...old },
    body: (x, redraw) => [
      field("Keep", h("select", { value: x.retain, onchange: (e) => { x.retain = e.target.value; redraw(); } }, ["forever", "until_acked", "until_archived"].map((v) => h("option", { value: v }, v.replace("_", " "))))),
      field("No longer than, hours", h("input", { type: "number", min: 0, step: "any", value: x.hours, oninput: (e) => { x.hours = e.target.value; } }), "Empty: no limit. What is older is removed, read or not."),
      field("No more than, MB", h("input", { type: "number", min: 1, step: "any", value: x.megabytes, oninput: (e) => { x.megabytes = e.target.value; } }), "Empty: no limit. Then the oldest messages go."),
    ],
    act: async (x) => {
      await patch(streamPath(s.name), { retain: x.retain, retain_up_to_ms: x.hours === "" ? null : Math.round(x.hours * 3600e3), max_storage: x.megabytes === "" ? null : Math.round(x.megabytes * 2 ** 20) });
      ctx.refresh();
      return "Changed.";
    },
  });
}

export default {
  name: "stream",
  title: (ctx) => ctx.params.stream,
  async load(ctx) {
    const name = ctx.params.stream;
    const [stream, all, history] = await Promise.all([
      get(streamPath(name)), get("api/overview", { search: name, limit: 1000 }), charts(ctx, streamPath(name, "history"), MINUTES[ctx.query.span || "hour"] || 60),
    ]);
    const tab = ctx.query.tab || "consumers";
    const consumers = all.consumers.filter((c) => c.consumer.stream === name);
    if (tab === "segments") return { stream, consumers, history, segments: await get(streamPath(name, "segments")) };
    if (tab === "messages") return { stream, consumers, history, messages: await get(streamPath(name, "messages"), { sort: "seq_desc", limit: 20 }) };
    return { stream, consumers, history };
  },
  view(ctx, { stream: s, consumers, history, segments, messages }) {
    const tab = ctx.query.tab || "consumers";
    return [
      h("div", { class: "title" }, h("h1", {}, s.name), s.is_full && chip("full", "Sending fails: there is no room"), h("span", { class: "grow" }),
        copies({ path: streamPath(s.name), cli: ["stream", "show", s.name], sql: `select * from headgate.streams where name = '${s.name}';`, python: `hg.stream("${s.name}").info()` }),
        may("produce") && button("Send a message", () => send(s.name)), isAdmin() && button("Remove", () => drop(ctx, s.name), "danger")),
      tiles(["Sent", f.rate(s.rate)], ["Messages", (s.exact ? "" : "~") + f.short(s.messages)], ["Size", f.bytes(s.bytes)], ["Oldest", f.moment(s.oldest)], ["Newest", f.moment(s.newest)], ["Last seq", f.count(s.last_seq)]),
      h("div", { class: "charts" }, chart({ title: "Sent a second", show: f.rate, ...history.of("Sent", "sent") }), chart({ title: "Size", show: f.bytes, ...history.of("Size", "bytes") })),
      tabs([["consumers", `Consumers ${consumers.length}`], ["messages", "Newest messages"], ["segments", "Segments"], ["settings", "Settings"]], tab, (t) => ctx.set({ tab: t }, { replace: false })),
      h("section", { class: "panel", key: tab },
        tab === "consumers" && [table(consumerColumns, consumers, { keyOf: (r) => r.consumer.name, empty: "Nobody reads this stream yet." }), isAdmin() && h("p", {}, button("New consumer", () => addConsumer(ctx, s.name)))],
        tab === "messages" && [messages && messageTable(s.name, messages), h("p", {}, link(`/messages?stream=${encodeURIComponent(s.name)}`, "Search all messages"))],
        tab === "segments" && segments && table([
          { name: "Segment", show: (g) => g.id }, { name: "State", show: (g) => chip(g.state) }, { name: "Seqs", show: (g) => `${f.count(g.first_seq)} to ${f.count(g.end_seq - 1)}` },
          { name: "Messages", number: true, show: (g) => f.count(g.messages) }, { name: "Size", number: true, show: (g) => f.bytes(g.bytes) }, { name: "Made", show: (g) => f.moment(g.created_at) }, { name: "Kept by", wide: true, show: (g) => g.kept_by || "" },
        ], [...segments].reverse(), { keyOf: (g) => g.id }),
        tab === "settings" && [facts([["Lanes", s.lane_by === "hash" ? `${s.lanes}, by the key's hash` : `by ${s.lane_by}`], ["Kept", kept(s)], ["At least", s.retain_at_least_ms && f.milliseconds(s.retain_at_least_ms)], ["Latest per key only", s.one_message_per_key ? "yes" : "no"],
          ["Ids remembered for", f.milliseconds(s.dedup_window_ms)], ["Largest message", f.bytes(s.max_message_bytes)], ["A segment ends at", `${f.count(s.segment_rows)} messages or ${f.bytes(s.segment_bytes)}${s.segment_age_ms ? ` or ${f.milliseconds(s.segment_age_ms)}` : ""}`], ["Made", f.moment(s.created_at)]]),
          isAdmin() && h("p", {}, button("Change retention", () => edit(ctx, s)))]),
    ];
  },
};

export const messageTable = (stream, messages, more = []) => table([
  { name: "Seq", number: true, show: (m) => link(toMessage(stream, m.seq), f.count(m.seq)) },
  { name: "Sent", show: (m) => f.moment(m.created_at) },
  { name: "Key", show: (m) => h("code", {}, m.key ?? "") },
  ...more,
  { name: "Data", wide: true, show: (m) => h("code", { class: "cut" }, f.oneLine(m.data)) },
], messages, { keyOf: (m) => m.seq, empty: "No messages." });
