// What pipelines say of themselves.

import { h } from "../view.js";
import { get } from "../api.js";
import { chip, table } from "../ui.js";
import { payload } from "../payload.js";
import * as f from "../format.js";

export default {
  name: "pipelines",
  title: () => "Pipelines",
  every: 5000,
  load: () => get("api/pipelines"),
  view: (ctx, rows) => [
    h("div", { class: "title" }, h("h1", {}, "Pipelines")),
    h(
      "section",
      { class: "panel" },
      table(
        [
          { name: "", show: (p) => chip(p.state) },
          { name: "Pipeline", show: (p) => h("b", {}, p.name) },
          { name: "Kind", show: (p) => p.kind },
          { name: "Runs since", show: (p) => f.moment(p.started_at) },
          { name: "Heard of", show: (p) => f.moment(p.seen_at) },
          {
            name: "Progress",
            wide: true,
            show: (p) =>
              h("details", {}, h("summary", {}, f.oneLine(p.progress, 60)), payload(p.progress), payload(p.spec)),
          },
          { name: "Error", wide: true, show: (p) => h("span", { class: "error" }, p.error || "") },
        ],
        rows,
        { keyOf: (p) => p.name, empty: "No pipeline has run here: headgate pipeline run FILE starts one." },
      ),
    ),
  ],
};
