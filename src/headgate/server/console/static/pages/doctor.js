// What is wrong, in sentences, and what to do about it.

import { h } from "../view.js";
import { get } from "../api.js";
import { chip } from "../ui.js";

export default {
  name: "doctor",
  every: 10_000,
  title: () => "Doctor",
  load: () => get("api/doctor"),
  view: (ctx, rows) => [
    h("div", { class: "title" }, h("h1", {}, "Doctor")),
    !rows.length && h("section", { class: "panel" }, h("p", { class: "empty" }, "Nothing is wrong.")),
    rows.map((d, i) =>
      h(
        "section",
        { class: `panel finding is-${d.severity}`, key: i },
        h("div", { class: "title" }, chip(d.severity), h("h2", {}, d.subject)),
        h("p", {}, d.finding),
        d.advice && h("p", { class: "quiet" }, d.advice),
      ),
    ),
  ],
};
