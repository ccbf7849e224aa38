// One consumer: how far it is, what it has in hand, what waits and why; and what can be done about it.

import { h } from "../view.js";
import { get, post, consumerPath, isAdmin } from "../api.js";
import { link, toStream, toMessage, chip, table, tiles, button, facts, tabs, copies } from "../ui.js";
import { act, seek, edit, discard, drop, retry } from "./consumer_actions.js";
import { chart } from "../charts.js";
import { charts, MINUTES } from "../history.js";
import { drained } from "./overview.js";
import { channelTable } from "./tenants.js";
import * as f from "../format.js";

const TABS = [
  ["parked", "Parked"],
  ["flight", "In flight"],
  ["unread", "Unread"],
  ["key", "Why a key waits"],
  ["failures", "Failed attempts"],
  ["workers", "Workers"],
  ["channels", "Tenants"],
  ["settings", "Settings"],
];

const peeked = (c, more) => [
  { name: "Seq", number: true, show: (m) => link(toMessage(c.stream, m.message.seq), f.count(m.message.seq)) },
  { name: "Key", show: (m) => h("code", {}, m.message.key ?? "") },
  { name: "Sent", show: (m) => f.moment(m.message.created_at) },
  ...more,
];

const SLOW = 400; // milliseconds that a consumer's own figures may take

/** Its figures; where counting them takes long (very many channels), those of the listing that all pages share. */
async function figures(ctx, stream, consumer) {
  if (ctx.state.isSlow) {
    const { consumers } = await get("api/overview", { stream, search: consumer, limit: 1000 });
    const found = consumers.find((r) => r.consumer.name === consumer);
    if (found) return found.consumer;
  }
  const began = performance.now();
  const found = await get(consumerPath(stream, consumer));
  ctx.state.isSlow = performance.now() - began > SLOW;
  return found;
}

/** What kind of stream it is, and its rate. */
async function streamOf(ctx, stream) {
  const { streams } = await get("api/overview", { stream, limit: 1 });
  return streams[0] || get(`api/streams/${encodeURIComponent(stream)}`);
}

/** What of a key is not done: the first one holds the others up. */
function keyPanel(ctx, c, rows) {
  const [first] = rows;
  const others = rows.filter((m) => m.state !== "more").length - 1;
  return [
    h(
      "div",
      { class: "filters" },
      h(
        "label",
        {},
        "Key",
        h("input", {
          type: "search",
          placeholder: "the whole key",
          value: ctx.query.key || "",
          onchange: (e) => ctx.set({ key: e.target.value.trim() }),
        }),
      ),
    ),
    ctx.query.key &&
      first?.state !== "more" &&
      h(
        "p",
        {},
        !first
          ? "Nothing of this key waits: all of it is done, or there is none."
          : c.order === "key" && others
            ? [link(toMessage(c.stream, first.seq), `Message ${f.count(first.seq)}`), " holds the others up."]
            : "These wait. Their order does not matter to this consumer, or there is one alone.",
      ),
    ctx.query.key &&
      table(
        [
          { name: "Seq", number: true, show: (m) => link(toMessage(c.stream, m.seq), f.count(m.seq)) },
          { name: "State", show: (m) => chip(m.state) },
          { name: "Sent", show: (m) => f.moment(m.created_at) },
          { name: "Attempts", number: true, show: (m) => m.attempt || "–" },
          { name: "Due, or in hand until", show: (m) => (m.not_visible_until ? f.moment(m.not_visible_until) : "–") },
          { name: "Worker", show: (m) => m.worker || "" },
          { name: "Last error", wide: true, show: (m) => h("span", { class: "cut error" }, m.last_error || "") },
        ],
        rows.filter((m) => m.state !== "more"),
        { keyOf: (m) => m.seq, empty: first ? "None was found in what was looked at: very many wait." : " " },
      ),
  ];
}

export default {
  name: "consumer",
  title: (ctx) => `${ctx.params.consumer} of ${ctx.params.stream}`,
  async load(ctx) {
    const { stream, consumer } = ctx.params;
    const path = consumerPath(stream, consumer);
    const tab = ctx.query.tab || "parked";
    const rows = {
      parked: () =>
        get(
          path + "/messages",
          { states: "parked", limit: 100, sort: "seq_asc", after: ctx.query.after, data_limit: 1 },
          { whole: true },
        ),
      flight: () =>
        get(
          path + "/messages",
          { states: "delivered", limit: 100, sort: "seq_asc", after: ctx.query.after, data_limit: 1 },
          { whole: true },
        ),
      unread: () =>
        get(
          path + "/messages",
          { states: "available", limit: 50, sort: "seq_asc", after: ctx.query.after, data_limit: 400 },
          { whole: true },
        ),
      failures: () =>
        get(`api/streams/${encodeURIComponent(stream)}/attempts`, { consumer, limit: 100 }, { whole: true }),
      workers: () => get(path + "/workers", null, { whole: true }),
      channels: () =>
        get(path + "/channels", { limit: 100, sort: ctx.query.sort, after: ctx.query.after }, { whole: true }),
      key: async () => ({ data: ctx.query.key ? await get(consumerPath(stream, consumer, "keys", ctx.query.key)) : [] }),
      settings: async () => ({ data: [] }),
    }[tab];
    const [c, s, history, found] = await Promise.all([
      figures(ctx, stream, consumer),
      streamOf(ctx, stream),
      charts(ctx, path + "/history", MINUTES[ctx.query.span || "hour"] || 60),
      rows(),
    ]);
    return { c, s, history, rows: found.data, next: found.next, tab };
  },
  view(ctx, { c, s, history, rows, next, tab }) {
    const path = consumerPath(c.stream, c.name);
    const oldest = c.oldest_unacked ? (Date.now() - Date.parse(c.oldest_unacked)) / 1000 : null;
    const named = s.lane_by !== "hash";
    return [
      h(
        "div",
        { class: "title" },
        h("h1", {}, c.name, " ", h("small", {}, "of ", link(toStream(c.stream), c.stream))),
        c.paused && chip("paused"),
        c.push && chip("push", c.push.url),
        c.leased && chip("leased"),
        h("span", { class: "grow" }),
        copies({
          path,
          cli: ["consumer", "show", c.stream, c.name],
          sql: `select * from headgate.consumers where stream = '${c.stream}' and name = '${c.name}';`,
          python: `hg.stream("${c.stream}").consumer("${c.name}").info()`,
        }),
        isAdmin() && [
          c.paused
            ? button("Resume", () => act(ctx, () => post(path + "/resume"), `${c.name} goes on.`), "primary")
            : button("Pause", () => act(ctx, () => post(path + "/pause"), `${c.name} is paused.`)),
          button("Move…", () => seek(ctx, c)),
          button("Limits…", () => edit(ctx, c)),
          button("Discard…", () => discard(ctx, c), "danger"),
          button("Remove", () => drop(ctx, c), "danger"),
        ],
      ),
      tiles(
        ["Lag", (c.exact ? "" : "~") + f.short(c.lag), "Unread, parked and in flight"],
        ["Unread", f.short(c.unread)],
        ["In flight", f.short(c.in_flight)],
        ["Parked", f.short(c.parked), `${f.count(c.due)} of them are due`],
        [
          "Dead",
          c.dead
            ? link(
                `/dead?stream=${encodeURIComponent(c.stream)}&consumer=${encodeURIComponent(c.name)}`,
                f.short(c.dead),
              )
            : "0",
          "Dead letters",
          c.dead > 0,
        ],
        ["Rate", f.rate(c.rate), "First attempts"],
        ["Oldest", f.length(oldest)],
        ["Drained in", drained(c, s.rate || 0), `Until nothing waits, at ${f.rate(c.rate)}, while ${f.rate(s.rate)} come in`],
        c.lost ? ["Lost", f.short(c.lost), "Removed by retention before it was done", true] : null,
      ),
      h(
        "div",
        { class: "charts" },
        chart({
          title: "Lag",
          show: f.short,
          ...history.of("Lag", "lag", "In flight", "in_flight", "Parked", "parked"),
        }),
        chart({ title: "Delivered a second", show: f.rate, ...history.of("Delivered", "delivered") }),
      ),
      tabs(
        TABS.filter(([key]) => (key !== "channels" || named) && (key !== "workers" || c.leased)),
        tab,
        (t) => ctx.set({ tab: t, after: "", sort: "" }, { replace: false }),
      ),
      h(
        "section",
        { class: "panel", key: tab },
        tab === "parked" && [
          table(
            peeked(c, [
              { name: "Attempts", number: true, show: (m) => m.deliver_count },
              { name: "Why", show: (m) => chip(m.reason || "parked") },
              {
                name: "Due",
                show: (m) => (m.not_visible_until ? f.moment(m.not_visible_until) : "when what is before it is done"),
              },
              { name: "Last error", wide: true, show: (m) => h("span", { class: "cut error" }, m.last_error || "") },
              { name: "", show: (m) => isAdmin() && button("Now", () => retry(ctx, c, [m.message.seq]), "small") },
            ]),
            rows,
            { keyOf: (m) => m.message.seq, empty: "Nothing is parked: no message waits for another attempt." },
          ),
          isAdmin() &&
            c.parked > 0 &&
            h(
              "p",
              {},
              button("Try all again now", () => retry(ctx, c)),
            ),
        ],
        tab === "flight" &&
          table(
            peeked(c, [
              { name: "Attempt", number: true, show: (m) => m.deliver_count },
              { name: "Until", show: (m) => f.moment(m.not_visible_until) },
              { name: "Worker", wide: true, show: (m) => m.worker || "" },
            ]),
            rows,
            { keyOf: (m) => m.message.seq, empty: "Nothing is in flight: no worker has a message in hand." },
          ),
        tab === "unread" &&
          table(
            peeked(c, [
              { name: "Data", wide: true, show: (m) => h("code", { class: "cut" }, f.oneLine(m.message.data)) },
            ]),
            rows,
            { keyOf: (m) => m.message.seq, empty: "Everything has been read." },
          ),
        tab === "key" && keyPanel(ctx, c, rows),
        tab === "failures" &&
          table(
            [
              { name: "At", show: (a) => f.moment(a.at) },
              { name: "Seq", number: true, show: (a) => link(toMessage(c.stream, a.seq), f.count(a.seq)) },
              { name: "Attempt", number: true, show: (a) => a.attempt },
              {
                name: "Took",
                number: true,
                show: (a) => (a.began ? f.length((Date.parse(a.at) - Date.parse(a.began)) / 1000) : "–"),
              },
              { name: "Outcome", show: (a) => chip(a.is_dead ? "dead" : a.outcome) },
              { name: "Error", wide: true, show: (a) => h("span", { class: "cut error" }, a.error || "") },
              { name: "Worker", show: (a) => a.worker || "" },
            ],
            rows,
            { keyOf: (a) => a.id, empty: "No attempt has failed lately." },
          ),
        tab === "workers" &&
          table(
            [
              { name: "Worker", wide: true, show: (w) => w.name },
              { name: "Lanes", show: (w) => f.oneLine(w.lanes.join(" "), 60) },
              { name: "In flight", number: true, show: (w) => w.in_flight },
              { name: "Since", show: (w) => f.moment(w.joined_at) },
              { name: "Seen", show: (w) => f.moment(w.seen_at) },
              { name: "Alive until", show: (w) => f.moment(w.until) },
            ],
            rows,
            { keyOf: (w) => w.name, empty: "No worker has joined." },
          ),
        tab === "channels" && channelTable(ctx, rows),
        tab === "settings" &&
          facts([
            ["Filter", c.filter ? c.filter.join(", ") : "all keys"],
            ["Order", c.order === "key" ? "by key: one message of a key at a time" : "none"],
            ["A message's time (ack_wait)", f.milliseconds(c.ack_wait_ms)],
            ["Attempts", c.max_deliver ?? "for ever"],
            ["Backoff", JSON.stringify(c.backoff)],
            ["In flight at most", c.max_ack_pending ?? "no limit"],
            ["At once in a channel", c.max_concurrency ?? "no limit"],
            ["Between messages of a channel", c.release_interval_ms && f.milliseconds(c.release_interval_ms)],
            ["Waiting at most", c.max_waiting],
            ["Leased", c.leased ? `yes, for ${f.milliseconds(c.lease_time_ms)}` : "no"],
            ["Pushes to", c.push?.url],
            ["Floor", f.count(c.floor)],
            ["Delivered", `${f.count(c.delivered)}, and ${f.count(c.redelivered)} again`],
            ["Made", f.moment(c.created_at)],
          ]),
        next != null &&
          h(
            "div",
            { class: "pager" },
            button("More", () => ctx.set({ after: next }), "small"),
          ),
      ),
    ];
  },
};
