// All streams; making one.

import { h } from "../view.js";
import { get, post, isAdmin } from "../api.js";
import { link, toStream, table, button, ask, bound, field } from "../ui.js";
import { pager } from "./overview.js";
import * as f from "../format.js";

function create(ctx) {
  return ask({
    title: "New stream",
    action: "Make it",
    state: { name: "", lane_by: "hash", retain: "forever", hours: "" },
    ready: (s) => s.name,
    body: (s, redraw) => [
      field(
        "Name",
        h("input", { pattern: "[A-Za-z0-9_][A-Za-z0-9_.\\-]*", required: true, ...bound(s, "name", redraw) }),
      ),
      field(
        "Lanes by",
        h(
          "select",
          { ...bound(s, "lane_by", redraw) },
          ["hash", "key", "channel"].map((v) => h("option", { value: v }, v)),
        ),
        "What shares a lane: keys of one hash, one key, or one channel (a tenant). It cannot be changed later.",
      ),
      field(
        "Keep",
        h(
          "select",
          { ...bound(s, "retain", redraw) },
          [
            ["forever", "for ever"],
            ["until_acked", "until every consumer has acked"],
          ].map(([v, t]) => h("option", { value: v }, t)),
        ),
      ),
      field(
        "But no longer than, hours",
        h("input", { type: "number", min: 0, step: "any", ...bound(s, "hours") }),
        "Empty: no limit",
      ),
    ],
    act: async (s) => {
      await post("api/streams", {
        name: s.name,
        lane_by: s.lane_by,
        retain: s.retain,
        retain_up_to_ms: s.hours ? Math.round(s.hours * 3600e3) : null,
      });
      ctx.go(toStream(s.name));
      return `The stream ${s.name} is there.`;
    },
  });
}

export default {
  name: "streams",
  title: () => "Streams",
  load: (ctx) => get("api/overview", { search: ctx.query.search, limit: 50, after: ctx.query.after || 0 }),
  view: (ctx, d) => [
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Streams"),
      h("span", { class: "grow" }),
      h("input", {
        type: "search",
        placeholder: "Filter by name",
        "aria-label": "Filter by name",
        value: ctx.query.search || "",
        oninput: (e) => ctx.set({ search: e.target.value, after: "" }),
      }),
      isAdmin() && button("New stream", () => create(ctx), "primary"),
    ),
    h(
      "section",
      { class: "panel" },
      table(
        [
          {
            name: "Stream",
            wide: true,
            show: (s) => [
              link(toStream(s.name), h("b", {}, s.name)),
              s.is_full && [" ", h("span", { class: "chip is-stuck" }, "full")],
              s.dead_of && h("small", { class: "quiet" }, " dead letters of ", s.dead_of),
            ],
          },
          { name: "Rate", number: true, show: (s) => f.rate(s.rate) },
          { name: "Messages", number: true, show: (s) => (s.exact ? "" : "~") + f.short(s.messages) },
          { name: "Size", number: true, show: (s) => f.bytes(s.bytes) },
          { name: "Consumers", number: true, show: (s) => s.consumers },
          { name: "Lanes", show: (s) => (s.lane_by === "hash" ? s.lanes : `by ${s.lane_by}`) },
          { name: "Newest", show: (s) => f.moment(s.newest) },
          { name: "Kept", show: (s) => kept(s) },
        ],
        d.streams,
        {
          keyOf: (s) => s.name,
          empty: ctx.query.search ? "No stream has this in its name." : "There are no streams yet.",
        },
      ),
      pager(ctx, Number(ctx.query.after || 0), d.streams_found),
    ),
  ],
};

export const kept = (s) =>
  [
    { forever: "for ever", until_acked: "until acked", until_archived: "until archived" }[s.retain],
    s.retain_up_to_ms != null && `up to ${f.milliseconds(s.retain_up_to_ms)}`,
    s.max_storage && `up to ${f.bytes(s.max_storage)}`,
  ]
    .filter(Boolean)
    .join(", ");
