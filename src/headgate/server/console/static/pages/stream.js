// One stream: throughput, consumers, segments, settings.

import { h } from "../view.js";
import { get, streamPath, isAdmin, may } from "../api.js";
import { link, toMessage, chip, table, tiles, button, facts, tabs, copies } from "../ui.js";
import { send, addConsumer, drop, edit } from "./stream_actions.js";
import { chart } from "../charts.js";
import { charts, MINUTES } from "../history.js";
import { consumerColumns } from "./overview.js";
import { kept } from "./streams.js";
import * as f from "../format.js";

export default {
  name: "stream",
  title: (ctx) => ctx.params.stream,
  async load(ctx) {
    const name = ctx.params.stream;
    const [stream, all, history] = await Promise.all([
      get(streamPath(name)),
      get("api/overview", { stream: name, limit: 1000 }),
      charts(ctx, streamPath(name, "history"), MINUTES[ctx.query.span || "hour"] || 60),
    ]);
    const tab = ctx.query.tab || "consumers";
    const consumers = all.consumers;
    if (tab === "segments") return { stream, consumers, history, segments: await get(streamPath(name, "segments")) };
    if (tab === "messages")
      return {
        stream,
        consumers,
        history,
        messages: await get(streamPath(name, "messages"), { sort: "seq_desc", limit: 20, data_limit: 400 }),
      };
    return { stream, consumers, history };
  },
  view(ctx, { stream: s, consumers, history, segments, messages }) {
    const tab = ctx.query.tab || "consumers";
    return [
      h(
        "div",
        { class: "title" },
        h("h1", {}, s.name),
        s.is_full && chip("full", "Sending fails: there is no room"),
        h("span", { class: "grow" }),
        copies({
          path: streamPath(s.name),
          cli: ["stream", "show", s.name],
          sql: `select * from headgate.streams where name = '${s.name}';`,
          python: `hg.stream("${s.name}").info()`,
        }),
        may("produce") && button("Send a message", () => send(s.name)),
        isAdmin() && button("Remove", () => drop(ctx, s.name), "danger"),
      ),
      tiles(
        ["Sent", f.rate(s.rate)],
        ["Messages", (s.exact ? "" : "~") + f.short(s.messages)],
        ["Size", f.bytes(s.bytes)],
        ["Oldest", f.moment(s.oldest)],
        ["Newest", f.moment(s.newest)],
        ["Last seq", f.count(s.last_seq)],
      ),
      h(
        "div",
        { class: "charts" },
        chart({ title: "Sent a second", show: f.rate, ...history.of("Sent", "sent") }),
        chart({ title: "Size", show: f.bytes, ...history.of("Size", "bytes") }),
      ),
      tabs(
        [
          ["consumers", `Consumers ${consumers.length}`],
          ["messages", "Newest messages"],
          ["segments", "Segments"],
          ["settings", "Settings"],
        ],
        tab,
        (t) => ctx.set({ tab: t }, { replace: false }),
      ),
      h(
        "section",
        { class: "panel", key: tab },
        tab === "consumers" && [
          table(consumerColumns, consumers, {
            keyOf: (r) => r.consumer.name,
            empty: "Nobody reads this stream yet.",
          }),
          isAdmin() &&
            h(
              "p",
              {},
              button("New consumer", () => addConsumer(ctx, s.name)),
            ),
        ],
        tab === "messages" && [
          messages && messageTable(s.name, messages),
          h("p", {}, link(`/messages?stream=${encodeURIComponent(s.name)}`, "Search all messages")),
        ],
        tab === "segments" &&
          segments &&
          table(
            [
              { name: "Segment", show: (g) => g.id },
              { name: "State", show: (g) => chip(g.state) },
              { name: "Seqs", show: (g) => `${f.count(g.first_seq)} to ${f.count(g.end_seq - 1)}` },
              { name: "Messages", number: true, show: (g) => f.count(g.messages) },
              { name: "Size", number: true, show: (g) => f.bytes(g.bytes) },
              { name: "Made", show: (g) => f.moment(g.created_at) },
              { name: "Kept by", wide: true, show: (g) => g.kept_by || "" },
            ],
            [...segments].reverse(),
            { keyOf: (g) => g.id },
          ),
        tab === "settings" && [
          facts([
            ["Lanes", s.lane_by === "hash" ? `${s.lanes}, by the key's hash` : `by ${s.lane_by}`],
            ["Kept", kept(s)],
            ["At least", s.retain_at_least_ms && f.milliseconds(s.retain_at_least_ms)],
            ["Latest per key only", s.one_message_per_key ? "yes" : "no"],
            ["Ids remembered for", f.milliseconds(s.dedup_window_ms)],
            ["Largest message", f.bytes(s.max_message_bytes)],
            [
              "A segment ends at",
              `${f.count(s.segment_rows)} messages or ${f.bytes(s.segment_bytes)}${s.segment_age_ms ? ` or ${f.milliseconds(s.segment_age_ms)}` : ""}`,
            ],
            ["Made", f.moment(s.created_at)],
          ]),
          isAdmin() &&
            h(
              "p",
              {},
              button("Change retention", () => edit(ctx, s)),
            ),
        ],
      ),
    ];
  },
};

export const messageTable = (stream, messages, more = []) =>
  table(
    [
      { name: "Seq", number: true, show: (m) => link(toMessage(stream, m.seq), f.count(m.seq)) },
      { name: "Sent", show: (m) => f.moment(m.created_at) },
      { name: "Key", show: (m) => h("code", {}, m.key ?? "") },
      ...more,
      { name: "Data", wide: true, show: (m) => h("code", { class: "cut" }, f.oneLine(m.data)) },
    ],
    messages,
    { keyOf: (m) => m.seq, empty: "No messages." },
  );
