// Everything at a glance, by trouble.

import { h } from "../view.js";
import { get, post, may, isAdmin } from "../api.js";
import { link, toStream, toConsumer, chip, table, tiles, section, button, note, fail, failure, tabs } from "../ui.js";
import { chart } from "../charts.js";
import { charts, MINUTES } from "../history.js";
import * as f from "../format.js";

const PAGE = 50;

export const consumerColumns = [
  { name: "", show: (r) => chip(r.trouble, r.about) },
  {
    name: "Consumer",
    wide: true,
    key: "name",
    show: ({ consumer: c }) => [
      link(toConsumer(c.stream, c.name), h("b", {}, c.name)),
      " ",
      h("small", {}, link(toStream(c.stream), c.stream)),
    ],
  },
  { name: "Lag", number: true, key: "lag", show: ({ consumer: c }) => (c.exact ? "" : "~") + f.short(c.lag) },
  { name: "Oldest", number: true, key: "age", show: (r) => f.length(r.age) },
  { name: "Rate", number: true, key: "rate", show: ({ consumer: c }) => f.rate(c.rate) },
  { name: "In flight", number: true, show: ({ consumer: c }) => f.short(c.in_flight) },
  { name: "Parked", number: true, show: ({ consumer: c }) => f.short(c.parked) },
  {
    name: "Dead",
    number: true,
    key: "dead",
    show: ({ consumer: c }) =>
      c.dead
        ? link(`/dead?stream=${encodeURIComponent(c.stream)}&consumer=${encodeURIComponent(c.name)}`, f.short(c.dead))
        : "0",
  },
  { name: "Drained in", number: true, show: ({ consumer: c }) => drained(c) },
];

/** How long the backlog takes at the rate at which it is worked off now. */
export function drained(c, inbound = 0) {
  if (!c.unread) return "–";
  const speed = (c.rate || 0) - inbound;
  return c.paused || speed <= 0 ? "never" : f.length(c.unread / speed);
}

function firstRun(ctx) {
  const make = async () => {
    try {
      await post("api/streams", { name: "hello", if_not_exists: true });
      await post("api/streams/hello/consumers", { name: "me", if_not_exists: true });
      await post("api/streams/hello/messages", { messages: [{ key: "hello.world", data: { text: "It works." } }] });
      note("Sent. There it is.");
      ctx.go("/streams/hello?tab=messages");
    } catch (error) {
      fail(error);
    }
  };
  const snippet = (name, text) => section(name, h("pre", { class: "data" }, text));
  return [
    h("h1", {}, "Nothing here yet"),
    h("p", { class: "lead" }, "This server works, and has no streams. Make the first one from where you are:"),
    isAdmin() &&
      h(
        "p",
        {},
        button("Send a test message", make, "primary"),
        " makes the stream ",
        h("code", {}, "hello"),
        " with a consumer and a message.",
      ),
    h(
      "div",
      { class: "columns" },
      snippet(
        "Shell",
        "headgate stream add orders\nheadgate consumer add orders billing\nheadgate send orders '{\"quantity\": 4}' --key orders.1\nheadgate receive orders billing --ack\n\nheadgate demo   # or: a whole shop, to look at",
      ),
      snippet(
        "Python",
        'import headgate\n\nhg = headgate.connect("postgresql://…")\norders = hg.stream("orders", create=True)\norders.send({"quantity": 4}, key="orders.1")\n\nbilling = orders.consumer("billing", create=True)\nfor m in billing.receive(10, wait=5):\n    print(m.data)\n    m.ack()',
      ),
      snippet(
        "SQL",
        "select headgate.create_stream('orders');\nselect headgate.create_consumer('orders', 'billing');\nselect headgate.send('orders', '{\"quantity\": 4}', 'orders.1');\nselect * from headgate.receive('orders', 'billing', 10);",
      ),
    ),
  ];
}

/** Of a large database people are shown what was seen lately. */
export function aged(at) {
  const seconds = (Date.now() - Date.parse(at)) / 1000;
  return seconds > 15 && h("small", { class: "quiet" }, `as it was ${f.length(seconds)} ago`);
}

export default {
  name: "overview",
  title: () => "Overview",
  async load(ctx) {
    const minutes = MINUTES[ctx.query.span || "hour"] || 60;
    const [all, history] = await Promise.all([
      get("api/overview", {
        search: ctx.query.search,
        sort: ctx.query.sort || "trouble",
        limit: PAGE,
        after: ctx.query.after || 0,
      }),
      charts(ctx, "api/history", minutes),
    ]);
    return { ...all, history };
  },
  view(ctx, d) {
    const t = d.totals;
    if (!t.streams) return firstRun(ctx);
    const sick = d.consumers.filter((c) => c.trouble !== "fine").length;
    const after = Number(ctx.query.after || 0);
    return [
      h(
        "div",
        { class: "title" },
        h("h1", {}, "Overview"),
        aged(d.at),
        h("span", { class: "grow" }),
        tabs(
          [
            ["hour", "Hour"],
            ["day", "Day"],
          ],
          ctx.query.span || "hour",
          (span) => ctx.set({ span: span === "hour" ? "" : span }),
        ),
      ),
      tiles(
        ["Sent", f.rate(t.sent)],
        ["Delivered", f.rate(t.delivered), "First attempts, by all consumers"],
        ["Waiting", f.short(t.lag), `${f.count(t.lag)} messages are unread, parked or in flight`],
        ["In flight", f.short(t.in_flight)],
        ["Parked", f.short(t.parked)],
        ["Dead", f.short(t.dead), "Dead letters", t.dead > 0],
        ["Size", f.bytes(t.bytes)],
        ["Streams", `${f.short(t.streams)} · ${f.short(t.consumers)}`, "Streams and consumers"],
      ),
      h(
        "div",
        { class: "charts" },
        chart({
          title: "Messages a second",
          show: f.rate,
          ...d.history.of("Sent", "sent", "Delivered", "delivered"),
        }),
        chart({ title: "Waiting", show: f.short, ...d.history.of("Waiting", "lag", "In flight", "in_flight") }),
      ),
      h(
        "section",
        { class: "panel" },
        h(
          "div",
          { class: "title" },
          h("h2", {}, sick ? "Consumers, those in trouble first" : "Consumers: all is well"),
          h("span", { class: "grow" }),
          h("input", {
            type: "search",
            placeholder: "Filter by name",
            "aria-label": "Filter by name",
            value: ctx.query.search || "",
            oninput: (e) => ctx.set({ search: e.target.value, after: "" }),
          }),
        ),
        table(consumerColumns, d.consumers, {
          keyOf: (r) => `${r.consumer.stream}/${r.consumer.name}`,
          sort: ctx.query.sort,
          onsort: (sort) => ctx.set({ sort: sort === ctx.query.sort ? "" : sort, after: "" }),
          empty: ctx.query.search ? "No consumer has this in its name." : "There are no consumers yet.",
        }),
        pager(ctx, after, d.consumers_found),
      ),
    ];
  },
};

export function pager(ctx, after, found, page = PAGE) {
  if (found <= page) return null;
  return h(
    "div",
    { class: "pager" },
    `${f.count(after + 1)} to ${f.count(Math.min(after + page, found))} of ${f.count(found)}`,
    button("Back", () => ctx.set({ after: Math.max(0, after - page) || "" }), after ? "small" : "small hidden"),
    button("More", () => ctx.set({ after: after + page }), after + page < found ? "small" : "small hidden"),
  );
}
