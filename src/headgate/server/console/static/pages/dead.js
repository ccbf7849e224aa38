// Dead letters, grouped by what went wrong: redriven, edited, or thrown away, a group at a time.

import { h } from "../view.js";
import { get, post, remove, consumerPath, isAdmin, may } from "../api.js";
import { link, toConsumer, toMessage, table, button, ask, copies } from "../ui.js";
import { payload } from "../payload.js";
import { chart } from "../charts.js";
import { charts, MINUTES } from "../history.js";
import { pager } from "./overview.js";
import { send } from "./stream_actions.js";
import * as f from "../format.js";

const STEP = 500; // letters that one call redrives or purges
const SHOWN = 50; // letters of a group on a page
const LONG = 20_000; // characters of data that are shown
const PAGE = 50; // consumers

/** Redrives or purges: some letters, or a group however large it is, in steps. */
function change(ctx, { path, group, letters, count, verb, done, about, danger, step }) {
  return ask({
    title: `${verb} ${f.count(count)} dead letter${count === 1 ? "" : "s"}?`,
    action: verb,
    danger,
    body: () => [h("p", {}, about), h("p", { class: "error" }, f.oneLine(group, 200))],
    act: async (_, progress, isClosed) => {
      let total = 0;
      let after = 0;
      for (let rows = letters; total < count && !isClosed(); ) {
        rows = letters || (await get(path, { group, limit: STEP, after, data_limit: 1 }));
        if (!rows.length) break;
        total += await step(rows.map((d) => d.seq));
        after = rows.at(-1).seq; // one that stays where it is is passed over
        progress(`${f.count(total)} of ${f.count(count)}`, total / count);
        if (letters) break;
      }
      ctx.refresh();
      return `${f.count(total)} ${done}.`;
    },
  });
}

const toDead = (c, more = {}) => "/dead?" + new URLSearchParams({ stream: c.stream, consumer: c.name, ...more });

function consumers(ctx, { consumers: rows, consumers_found: found }) {
  return [
    h("div", { class: "title" }, h("h1", {}, "Dead letters")),
    h(
      "section",
      { class: "panel" },
      table(
        [
          {
            name: "Consumer",
            wide: true,
            show: ({ consumer: c }) => [
              link(toDead(c), h("b", {}, c.name)),
              " ",
              h("small", { class: "quiet" }, c.stream),
            ],
          },
          { name: "Dead", number: true, show: ({ consumer: c }) => f.count(c.dead) },
          { name: "Waiting", number: true, show: ({ consumer: c }) => f.count(c.lag) },
          { name: "Attempts", number: true, show: ({ consumer: c }) => c.max_deliver ?? "for ever" },
        ],
        rows,
        {
          keyOf: (r) => `${r.consumer.stream}/${r.consumer.name}`,
          empty: "No message has failed too often. There are no dead letters.",
        },
      ),
      pager(ctx, Number(ctx.query.after || 0), found, PAGE),
    ),
  ];
}

function lettersOf(ctx, group, letters, { redrive, purge, fix }) {
  const { stream } = ctx.query;
  const last = letters.at(-1);
  return [
    table(
      [
        {
          name: "Message",
          number: true,
          show: (d) => (d.source_seq ? link(toMessage(stream, d.source_seq), f.count(d.source_seq)) : f.count(d.seq)),
        },
        { name: "Key", show: (d) => h("code", {}, d.key ?? "") },
        { name: "Failed", show: (d) => f.moment(d.failed_at) },
        { name: "Attempts", number: true, show: (d) => d.attempts },
        { name: "Error", wide: true, show: (d) => h("span", { class: "cut error" }, d.last_error || "") },
        {
          name: "Data",
          wide: true,
          show: (d) =>
            h(
              "details",
              { class: "inline" },
              h("summary", {}, h("code", {}, f.oneLine(d.data, 48))),
              payload(d.data, { cut: d.cut }),
            ),
        },
        {
          name: "",
          show: (d) =>
            isAdmin() &&
            h(
              "span",
              { class: "actions" },
              button("Redrive", () => redrive(group, [d]), "small"),
              may("produce") && !d.cut && button("Edit…", () => fix(d), "small"),
              button("Purge", () => purge(group, [d]), "small danger"),
            ),
        },
      ],
      letters,
      { keyOf: (d) => d.seq },
    ),
    h(
      "div",
      { class: "pager" },
      ctx.query.after && button("To the oldest", () => ctx.set({ after: "" }), "small"),
      letters.length >= SHOWN && button("More", () => ctx.set({ after: last.seq }, { replace: false }), "small"),
    ),
  ];
}

export default {
  name: "dead",
  every: 5000,
  title: () => "Dead letters",
  async load(ctx) {
    const { stream, consumer, group, after } = ctx.query;
    if (!stream || !consumer)
      return { overview: await get("api/overview", { only: "dead", sort: "dead", limit: PAGE, after: after || 0 }) };
    const path = consumerPath(stream, consumer, "dead");
    const [groups, history, letters] = await Promise.all([
      get(path + "/groups"),
      charts(ctx, consumerPath(stream, consumer, "history"), MINUTES[ctx.query.span || "hour"] || 60),
      group ? get(path, { group, limit: SHOWN, after, data_limit: LONG }) : [],
    ]);
    return { groups, history, letters };
  },
  view(ctx, { overview, groups, history, letters }) {
    if (overview) return consumers(ctx, overview);
    const { stream, consumer } = ctx.query;
    const path = consumerPath(stream, consumer, "dead");
    const redrive = (g, some) =>
      change(ctx, {
        ...{ path, group: g.group, letters: some, count: some ? some.length : g.letters },
        verb: "Redrive",
        done: "were redriven",
        about: `${consumer} is handed them again, as if they had never been delivered. No other consumer is.`,
        step: async (seqs) => (await post(path + "/redrive", { seqs })).redriven,
      });
    const purge = (g, some) =>
      change(ctx, {
        ...{ path, group: g.group, letters: some, count: some ? some.length : g.letters },
        verb: "Purge",
        done: "were thrown away",
        danger: true,
        about: "They are thrown away and do not come back.",
        step: async (seqs) => (await remove(path, { seqs })).purged,
      });
    const fix = (d) =>
      send(stream, {
        title: "Edit and redrive",
        data: typeof d.data === "string" ? d.data : f.json(d.data),
        key: d.key ?? "",
        headers: Object.keys(d.headers || {}).length ? f.json(d.headers) : "",
        about: `It is sent to ${stream} as a new message, to all its consumers, and this dead letter is thrown away.`,
        done: async (seq) => {
          await remove(path, { seqs: [d.seq] });
          ctx.refresh();
          return `Sent as ${f.count(seq)}, to all consumers of ${stream}; the dead letter is gone.`;
        },
      });
    const most = Math.max(1, ...groups.map((g) => g.letters));
    return [
      h(
        "div",
        { class: "title" },
        h(
          "h1",
          {},
          "Dead letters ",
          h("small", {}, "of ", link(toConsumer(stream, consumer), consumer), " of ", stream),
        ),
        h("span", { class: "grow" }),
        link("/dead", "All consumers"),
        copies({
          method: "POST",
          path: path + "/redrive",
          body: { all: true },
          cli: ["dead", "redrive", stream, consumer, "--all"],
          sql: ["redrive", [stream, consumer], { '"all"': "true" }],
          python: `hg.stream("${stream}").consumer("${consumer}").redrive(all=True)`,
        }),
      ),
      groups.length > 0 &&
        h(
          "div",
          { class: "charts" },
          chart({ title: "Dead letters", show: f.short, ...history.of("Dead", "dead") }),
          chart({ title: "Parked, to be tried again", show: f.short, ...history.of("Parked", "parked") }),
        ),
      groups.some((g) => !g.complete) &&
        h("p", { class: "warn" }, "These are the newest 100,000. There are more."),
      !groups.length && h("p", { class: "quiet empty" }, "There are none."),
      groups.map((g) => {
        const isOpen = ctx.query.group === g.group;
        return h(
          "section",
          { class: "panel group", key: g.group },
          h(
            "div",
            { class: "title" },
            h(
              "button",
              {
                class: "fold",
                "aria-expanded": String(isOpen),
                onclick: () => ctx.set({ group: isOpen ? "" : g.group, after: "" }),
              },
              h("span", { class: "turn", "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
              h("b", { class: "count" }, f.count(g.letters)),
              h("span", { class: "error" }, g.group),
            ),
            h("span", { class: "grow" }),
            h("span", { class: "bar", style: { "--part": g.letters / most }, "aria-hidden": "true" }),
            h(
              "small",
              { class: "quiet" },
              g.letters > 1 ? `${f.moment(g.first_at)} to ${f.moment(g.last_at)}` : f.moment(g.last_at),
            ),
            isAdmin() && [
              button("Redrive", () => redrive(g), "small"),
              button("Purge", () => purge(g), "small danger"),
            ],
          ),
          isOpen && lettersOf(ctx, g, letters, { redrive, purge, fix }),
        );
      }),
    ];
  },
};
