// What is wrong, in sentences, and what to do about it.

import { h } from "../view.js";
import { get } from "../api.js";
import { chip, link, toConsumer, toStream } from "../ui.js";

/** What a finding is about, as a link where it has a page. */
function about(subject) {
  const [, kind, name] = /^(consumer|stream|source|pipeline) (\S+)$/.exec(subject) || [];
  const [stream, consumer] = (name || "").split("/");
  const to = {
    consumer: consumer && toConsumer(stream, consumer),
    stream: name && toStream(name),
    source: "/sources",
    pipeline: "/pipelines",
  }[kind];
  return to ? [`${kind} `, link(to, name)] : subject;
}

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
        h("div", { class: "title" }, chip(d.severity), h("h2", {}, about(d.subject))),
        h("p", {}, d.finding),
        d.advice && h("p", { class: "quiet" }, d.advice),
      ),
    ),
  ],
};
