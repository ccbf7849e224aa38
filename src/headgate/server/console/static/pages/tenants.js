// Who waits, who is capped, and how much each has waiting.

import { h } from "../view.js";
import { get, put, consumerPath, isAdmin } from "../api.js";
import { link, toConsumer, chip, table, button, ask, bound, field } from "../ui.js";
import { picker } from "../picker.js";
import * as f from "../format.js";

function limit(ctx, c) {
  return ask({
    title: `Limits of ${c.channel ?? "messages without one"}`,
    action: "Change them",
    state: { n: c.max_concurrency ?? "", s: c.release_interval_ms == null ? "" : c.release_interval_ms / 1000 },
    body: (x) => [
      field(
        "In hand at once",
        h("input", { type: "number", min: 0, ...bound(x, "n") }),
        "Empty: the consumer's own limit. 0: nothing is handed out.",
      ),
      field(
        "Seconds between messages",
        h("input", { type: "number", min: 0, step: "any", ...bound(x, "s") }),
        "Empty: the consumer's own",
      ),
    ],
    act: async (x) => {
      await put(consumerPath(c.stream, c.consumer, "channels", c.channel), {
        max_concurrency: x.n === "" ? null : Number(x.n),
        release_interval_ms: x.s === "" ? null : Math.round(x.s * 1000),
      });
      ctx.refresh();
      return "Changed.";
    },
  });
}

export function channelTable(ctx, rows) {
  const most = Math.max(1, ...rows.map((c) => c.waiting));
  return table(
    [
      {
        name: "Tenant",
        wide: true,
        key: "name",
        show: (c) => (c.channel == null ? h("i", {}, "none") : h("b", {}, c.channel)),
      },
      {
        name: "",
        show: (c) =>
          chip(
            c.state,
            {
              idle: "Nothing waits",
              ready: "Waits for a worker",
              waiting: "Waits for its time",
              full: "Has as many in hand as it may",
            }[c.state],
          ),
      },
      {
        name: "Waiting",
        number: true,
        key: "waiting",
        show: (c) => [
          h("span", { class: "bar", style: { "--part": c.waiting / most } }),
          (c.exact ? "" : "~") + f.short(c.waiting),
        ],
      },
      { name: "Delayed", number: true, show: (c) => f.short(c.delayed) },
      {
        name: "Oldest",
        key: "oldest",
        show: (c) => (c.oldest ? f.length((Date.now() - Date.parse(c.oldest)) / 1000) : "–"),
      },
      {
        name: "In flight",
        number: true,
        show: (c) => `${c.in_flight}${c.max_concurrency != null ? " / " + c.max_concurrency : ""}`,
      },
      { name: "Delivered", number: true, show: (c) => f.short(c.delivered) },
      { name: "", show: (c) => isAdmin() && c.channel != null && button("Limits…", () => limit(ctx, c), "small") },
    ],
    rows,
    {
      keyOf: (c) => String(c.channel),
      sort: ctx.query.sort || "waiting",
      onsort: (sort) => ctx.set({ sort, after: "" }),
      empty: "Nothing is known of any tenant: none has messages or limits.",
    },
  );
}

export default {
  name: "tenants",
  title: () => "Tenants",
  async load(ctx) {
    const [stream, name] = (ctx.query.consumer || "").split("/");
    // (without a choice, the one with the most behind it)
    const { consumers } = await get("api/overview", { only: "tenants", sort: "lag", limit: 1 });
    const chosen = name ? await get(consumerPath(stream, name)) : consumers[0]?.consumer;
    if (!chosen) return {};
    const page = await get(
      consumerPath(chosen.stream, chosen.name, "channels"),
      { limit: 50, sort: ctx.query.sort, after: ctx.query.after },
      { whole: true },
    );
    return { chosen, rows: page.data, next: page.next };
  },
  view: (ctx, { chosen, rows, next }) => [
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Tenants"),
      h("span", { class: "grow" }),
      chosen &&
        picker(ctx.state, {
          label: "of ",
          value: `${chosen.stream}/${chosen.name}`,
          query: { only: "tenants" },
          found: (all) => all.consumers.map(({ consumer: c }) => `${c.stream}/${c.name}`),
          choose: (consumer) => ctx.set({ consumer, after: "" }, { replace: false }),
        }),
    ),
    !chosen
      ? h(
          "p",
          { class: "quiet empty" },
          "No stream has lanes by channel or key. A stream that is made with lane_by channel serves its tenants in turns, each within its limits.",
        )
      : h(
          "section",
          { class: "panel" },
          h(
            "p",
            { class: "quiet" },
            link(toConsumer(chosen.stream, chosen.name), chosen.name),
            ` has ${f.count(chosen.lag)} waiting; `,
            chosen.max_concurrency != null
              ? `a tenant may have ${chosen.max_concurrency} in hand at once.`
              : "tenants have no limit of their own.",
          ),
          channelTable(ctx, rows),
          h(
            "div",
            { class: "pager" },
            ctx.query.after && button("To the first page", () => ctx.set({ after: "" }), "small"),
            next && button("More", () => ctx.set({ after: next }), "small"),
          ),
        ),
  ],
};
