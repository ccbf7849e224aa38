// Where messages come from: webhooks and tables.

import { h } from "../view.js";
import { get, post, isAdmin } from "../api.js";
import { link, toStream, chip, table, button, section, ask, note, fail } from "../ui.js";
import * as f from "../format.js";

const path = (name, ...more) => ["api/sources", encodeURIComponent(name), ...more].join("/");

export default {
  name: "sources",
  title: () => "Sources",
  async load() {
    const sources = await get("api/sources");
    const backfills = {};
    for (const s of sources.filter((x) => x.postgres)) backfills[s.name] = await get(path(s.name, "backfill"));
    return { sources, backfills };
  },
  view(ctx, { sources, backfills }) {
    const tables = sources.filter((s) => s.postgres),
      hooks = sources.filter((s) => !s.postgres);
    const turn = async (s) => {
      const isPaused = s.postgres.state === "paused";
      try {
        await post(path(s.name, isPaused ? "resume" : "pause"));
        note(isPaused ? `${s.name} is read again.` : `${s.name} is not read. Its database keeps WAL meanwhile.`);
        ctx.refresh();
      } catch (error) {
        fail(error);
      }
    };
    const backfill = (s) =>
      ask({
        title: `Send all rows of ${s.name} again?`,
        action: "Send them",
        body: () =>
          h(
            "p",
            {},
            `All rows of ${s.postgres.tables.join(", ")} are sent to ${s.stream} with action read, beside their changes.`,
          ),
        act: async () => {
          await post(path(s.name, "backfill"), {});
          ctx.refresh();
          return "Begun.";
        },
      });
    return [
      h("div", { class: "title" }, h("h1", {}, "Sources")),
      section(
        "Tables of PostgreSQL",
        table(
          [
            { name: "", show: (s) => chip(s.postgres.state, s.postgres.error) },
            { name: "Source", show: (s) => h("b", {}, s.name) },
            { name: "To", show: (s) => link(toStream(s.stream), s.stream) },
            { name: "Tables", wide: true, show: (s) => h("code", {}, s.postgres.tables.join(", ")) },
            {
              name: "Behind",
              number: true,
              show: (s) =>
                (s.postgres.lag_ms == null ? "–" : f.milliseconds(s.postgres.lag_ms)) +
                (s.postgres.lag_bytes != null ? `, ${f.bytes(s.postgres.lag_bytes)}` : ""),
            },
            { name: "Rate", number: true, show: (s) => f.rate(s.postgres.rate) },
            { name: "Messages", number: true, show: (s) => f.short(s.postgres.messages) },
            {
              name: "Backfill",
              show: (s) =>
                backfills[s.name]?.map((b) =>
                  h(
                    "div",
                    { title: b.error || null },
                    `${b.table}: ${b.state}, ${f.short(b.rows)}${b.estimate ? " of ~" + f.short(b.estimate) : ""}`,
                  ),
                ),
            },
            {
              name: "",
              wide: true,
              show: (s) =>
                s.postgres.error &&
                h("span", { class: "error" }, s.postgres.error, " ", h("small", {}, s.postgres.hint)),
            },
            {
              name: "",
              show: (s) =>
                isAdmin() &&
                h(
                  "span",
                  { class: "actions" },
                  button(s.postgres.state === "paused" ? "Resume" : "Pause", () => turn(s), "small"),
                  button("Backfill…", () => backfill(s), "small"),
                ),
            },
          ],
          tables,
          { keyOf: (s) => s.name, empty: "None: headgate source add NAME STREAM --kind postgres makes one." },
        ),
      ),
      section(
        "Webhooks",
        table(
          [
            { name: "Source", show: (s) => h("b", {}, s.name) },
            { name: "To", show: (s) => link(toStream(s.stream), s.stream) },
            { name: "Address", wide: true, show: (s) => h("code", {}, `/api/webhooks/${s.name}`) },
            { name: "Signed by", show: (s) => s.scheme },
            { name: "Secrets", show: (s) => s.secret.join(", ") },
            { name: "Key from", show: (s) => s.key || "" },
            { name: "Id from", show: (s) => s.id || "" },
            { name: "Made", show: (s) => f.moment(s.created_at) },
          ],
          hooks,
          { keyOf: (s) => s.name, empty: "None." },
        ),
      ),
    ];
  },
};
