// Who did what.

import { h } from "../view.js";
import { get } from "../api.js";
import { table, button, chip } from "../ui.js";
import * as f from "../format.js";

export default {
  name: "audit",
  every: 5000,
  title: () => "Audit",
  load: (ctx) => get("api/audit", { limit: 100, before: ctx.query.before }),
  view(ctx, rows) {
    const wanted = (ctx.query.search || "").toLowerCase();
    const shown = rows.filter((a) => !wanted || JSON.stringify(a).toLowerCase().includes(wanted));
    return [
      h(
        "div",
        { class: "title" },
        h("h1", {}, "Audit"),
        h("span", { class: "grow" }),
        h("input", {
          type: "search",
          placeholder: "Filter this page",
          "aria-label": "Filter this page",
          value: ctx.query.search || "",
          oninput: (e) => ctx.set({ search: e.target.value }),
        }),
      ),
      h(
        "section",
        { class: "panel" },
        table(
          [
            { name: "At", show: (a) => f.moment(a.at) },
            { name: "Who", show: (a) => [h("b", {}, a.who), " ", h("small", { class: "quiet" }, a.token)] },
            { name: "From", show: (a) => a.address || "" },
            { name: "Did", wide: true, show: (a) => h("code", {}, a.action) },
            { name: "", show: (a) => chip(a.status < 300 ? "done" : "refused", String(a.status)) },
            { name: "Stream", show: (a) => a.stream || "" },
            {
              name: "Asked for",
              wide: true,
              show: (a) => a.details && h("code", { class: "cut" }, f.oneLine(a.details, 120)),
            },
          ],
          shown,
          { keyOf: (a) => a.id, empty: "No administrative call was noted." },
        ),
        h(
          "div",
          { class: "pager" },
          ctx.query.before && button("To the newest", () => ctx.set({ before: "" }), "small"),
          rows.length >= 100 &&
            button("Older", () => ctx.set({ before: rows.at(-1).id }, { replace: false }), "small"),
        ),
      ),
    ];
  },
};
