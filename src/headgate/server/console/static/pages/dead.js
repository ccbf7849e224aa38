// Dead letters, grouped by what went wrong: redriven, edited, or thrown away, a group at a time.

import { h } from "../view.js";
import { get, post, remove, consumerPath, isAdmin, may } from "../api.js";
import { link, toConsumer, toMessage, table, button, ask, payload, copies } from "../ui.js";
import { send } from "./stream_actions.js";
import * as f from "../format.js";

const MOST = 5000; // dead letters that are looked at
const STEP = 500; // that one call redrives or purges

async function all(path) {
  const found = [];
  let after = 0;
  while (found.length < MOST) {
    const page = await get(path, { limit: 1000, after });
    found.push(...page);
    if (page.length < 1000) break;
    after = page.at(-1).seq;
  }
  return found;
}

function group(letters) {
  const groups = new Map();
  for (const d of letters) {
    const name = f.normalised(d.last_error);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(d);
  }
  return [...groups]
    .map(([name, rows]) => ({
      name,
      rows,
      first: rows[0].failed_at,
      last: rows.reduce((a, b) => (a > b.failed_at ? a : b.failed_at), ""),
    }))
    .sort((a, b) => b.rows.length - a.rows.length);
}

function change(ctx, rows, { verb, done, about, danger, step }) {
  return ask({
    title: `${verb} ${f.count(rows.length)} dead letter${rows.length === 1 ? "" : "s"}?`,
    action: verb,
    danger,
    body: () => [h("p", {}, about), h("p", { class: "quiet" }, f.oneLine(f.normalised(rows[0].last_error), 200))],
    act: async (_, progress) => {
      let total = 0;
      for (let i = 0; i < rows.length; i += STEP) {
        total += await step(rows.slice(i, i + STEP).map((d) => d.seq));
        progress(`${f.count(total)} of ${f.count(rows.length)}`);
      }
      ctx.refresh();
      return `${f.count(total)} ${done}.`;
    },
  });
}

export default {
  name: "dead",
  every: 5000,
  title: () => "Dead letters",
  async load(ctx) {
    const { stream, consumer } = ctx.query;
    if (!stream || !consumer) return { overview: await get("api/overview", { sort: "dead", limit: 200 }) };
    const letters = await all(consumerPath(stream, consumer, "dead"));
    return { letters, groups: group(letters) };
  },
  view(ctx, d) {
    if (d.overview) {
      const with_dead = d.overview.consumers.filter((r) => r.consumer.dead > 0);
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
                  link(
                    `/dead?stream=${encodeURIComponent(c.stream)}&consumer=${encodeURIComponent(c.name)}`,
                    h("b", {}, c.name),
                  ),
                  " ",
                  h("small", {}, c.stream),
                ],
              },
              { name: "Dead", number: true, show: ({ consumer: c }) => f.count(c.dead) },
            ],
            with_dead,
            {
              keyOf: (r) => `${r.consumer.stream}/${r.consumer.name}`,
              empty: "No message has failed too often. There are no dead letters.",
            },
          ),
        ),
      ];
    }
    const { stream, consumer } = ctx.query;
    const path = consumerPath(stream, consumer, "dead");
    const redrive = (rows) =>
      change(ctx, rows, {
        verb: "Redrive",
        done: "were redriven",
        about: `${consumer} is handed them again, as if they had never been delivered.`,
        step: async (seqs) => (await post(path + "/redrive", { seqs })).redriven,
      });
    const purge = (rows) =>
      change(ctx, rows, {
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
        headers: d.headers ? f.json(d.headers) : "",
        done: async (seq) => {
          await remove(path, { seqs: [d.seq] });
          ctx.refresh();
          return `Sent as ${f.count(seq)}, to all consumers of ${stream}; the dead letter is gone.`;
        },
      });
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
      d.letters.length >= MOST && h("p", { class: "warn" }, `These are the oldest ${f.count(MOST)}. There are more.`),
      !d.groups.length && h("p", { class: "quiet empty" }, "There are none."),
      d.groups.map((g) => {
        const isOpen = ctx.state.open === g.name;
        return h(
          "section",
          { class: "panel group", key: g.name },
          h(
            "div",
            { class: "title" },
            h(
              "button",
              {
                class: "fold",
                "aria-expanded": String(isOpen),
                onclick: () => {
                  ctx.state.open = isOpen ? null : g.name;
                  ctx.redraw();
                },
              },
              isOpen ? "▾ " : "▸ ",
              h("b", { class: "count" }, f.count(g.rows.length)),
              " ",
              h("span", { class: "error" }, g.name),
            ),
            h("span", { class: "grow" }),
            h("small", { class: "quiet" }, "last ", f.moment(g.last)),
            isAdmin() && [
              button("Redrive", () => redrive(g.rows), "small"),
              button("Purge", () => purge(g.rows), "small danger"),
            ],
          ),
          isOpen &&
            table(
              [
                {
                  name: "Message",
                  number: true,
                  show: (d) =>
                    d.source_seq ? link(toMessage(stream, d.source_seq), f.count(d.source_seq)) : f.count(d.seq),
                },
                { name: "Key", show: (d) => h("code", {}, d.key ?? "") },
                { name: "Failed", show: (d) => f.moment(d.failed_at) },
                { name: "Attempts", number: true, show: (d) => d.attempts },
                { name: "Error", wide: true, show: (d) => h("span", { class: "error" }, d.last_error || "") },
                {
                  name: "Data",
                  show: (d) => h("details", {}, h("summary", {}, f.oneLine(d.data, 40)), payload(d.data)),
                },
                {
                  name: "",
                  show: (d) =>
                    isAdmin() &&
                    h(
                      "span",
                      { class: "actions" },
                      button("Redrive", () => redrive([d]), "small"),
                      may("produce") && button("Edit…", () => fix(d), "small"),
                      button("Purge", () => purge([d]), "small danger"),
                    ),
                },
              ],
              g.rows.slice(0, 100),
              { keyOf: (d) => d.seq },
            ),
          isOpen && g.rows.length > 100 && h("p", { class: "quiet" }, `The first 100 of ${f.count(g.rows.length)}.`),
        );
      }),
    ];
  },
};
