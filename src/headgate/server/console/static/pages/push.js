// Where consumers push to, and what those say.

import { h } from "../view.js";
import { get, post, consumerPath, isAdmin } from "../api.js";
import { link, toConsumer, toStream, chip, table, button, note, fail } from "../ui.js";
import { pager } from "./overview.js";
import * as f from "../format.js";

const PAGE = 50;

export default {
  name: "push",
  title: () => "Push",
  load: (ctx) => get("api/overview", { only: "push", limit: PAGE, after: ctx.query.after || 0 }),
  view: (ctx, { consumers: rows, consumers_found: found }) => [
    h("div", { class: "title" }, h("h1", {}, "Push targets")),
    h(
      "section",
      { class: "panel" },
      table(
        [
          {
            name: "",
            show: (r) => chip(r.consumer.push.note ? "stuck" : r.trouble, r.consumer.push.note || r.about),
          },
          {
            name: "Consumer",
            show: ({ consumer: c }) => [
              link(toConsumer(c.stream, c.name), h("b", {}, c.name)),
              " ",
              h("small", {}, link(toStream(c.stream), c.stream)),
            ],
          },
          { name: "Posts to", wide: true, show: ({ consumer: c }) => h("code", {}, c.push.url) },
          { name: "At once", number: true, show: ({ consumer: c }) => c.push.concurrency },
          { name: "Rate", number: true, show: ({ consumer: c }) => f.rate(c.rate) },
          { name: "Lag", number: true, show: ({ consumer: c }) => f.short(c.lag) },
          { name: "Signed with", show: ({ consumer: c }) => c.push.secret.join(", ") },
          {
            name: "Last error",
            wide: true,
            show: ({ consumer: c }) => h("span", { class: "error" }, c.push.note || c.push.last_error || ""),
          },
          {
            name: "",
            show: ({ consumer: c }) =>
              isAdmin() &&
              button(
                c.paused ? "Resume" : "Pause",
                async () => {
                  try {
                    await post(consumerPath(c.stream, c.name, c.paused ? "resume" : "pause"));
                    note(c.paused ? `${c.name} goes on.` : `${c.name} is paused.`);
                    ctx.refresh();
                  } catch (error) {
                    fail(error);
                  }
                },
                "small",
              ),
          },
        ],
        rows,
        {
          keyOf: (r) => `${r.consumer.stream}/${r.consumer.name}`,
          empty: "No consumer pushes. One that is made with push has its messages posted to a URL, signed.",
        },
      ),
      pager(ctx, Number(ctx.query.after || 0), found, PAGE),
    ),
  ],
};
