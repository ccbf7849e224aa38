// Who may call.

import { h } from "../view.js";
import { get, post, remove } from "../api.js";
import { chip, table, button, ask, bound, field, copy } from "../ui.js";
import * as f from "../format.js";

const SCOPES = ["admin", "produce", "consume", "monitor"];

async function make(ctx) {
  let made = null;
  const was = await ask({
    title: "New token",
    action: "Make it",
    state: { name: "", scopes: ["monitor"], streams: "", days: "" },
    ready: (s) => s.name && s.scopes.length,
    body: (s, redraw) => [
      field("Name", h("input", { ...bound(s, "name", redraw) }), "Who or what uses it"),
      h(
        "fieldset",
        {},
        h("legend", {}, "May"),
        SCOPES.map((x) =>
          h(
            "label",
            { class: "check" },
            h("input", {
              type: "checkbox",
              checked: s.scopes.includes(x),
              onchange: (e) => {
                s.scopes = e.target.checked ? [...s.scopes, x] : s.scopes.filter((y) => y !== x);
                redraw();
              },
            }),
            x,
          ),
        ),
      ),
      field(
        "Streams",
        h("input", { placeholder: "orders.>", ...bound(s, "streams") }),
        "Patterns with commas between them. Empty: all",
      ),
      field(
        "Valid for, days",
        h("input", { type: "number", min: 0, step: "any", ...bound(s, "days") }),
        "Empty: until it is revoked",
      ),
    ],
    act: async (s) => {
      made = await post("api/tokens", {
        name: s.name,
        scopes: s.scopes,
        streams: s.streams.trim() ? s.streams.split(",").map((x) => x.trim()) : null,
        lifetime_ms: s.days ? Math.round(s.days * 86400e3) : null,
      });
    },
  });
  if (!was) return;
  ctx.refresh();
  await ask({
    title: "The token",
    action: "Copy it",
    body: () => [h("p", {}, "It is shown this once."), h("pre", { class: "data secret" }, made.token)],
    act: () => copy(made.token),
  });
}

export default {
  name: "tokens",
  every: 10_000,
  title: () => "Tokens",
  load: () => get("api/tokens"),
  view: (ctx, rows) => [
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Tokens"),
      h("span", { class: "grow" }),
      button("New token", () => make(ctx), "primary"),
    ),
    h(
      "section",
      { class: "panel" },
      table(
        [
          {
            name: "",
            show: (t) =>
              chip(
                t.revoked_at
                  ? "revoked"
                  : t.expires_at && Date.parse(t.expires_at) < Date.now()
                    ? "expired"
                    : "valid",
              ),
          },
          { name: "Name", wide: true, show: (t) => h("b", {}, t.name) },
          { name: "Id", show: (t) => h("code", {}, t.id) },
          { name: "May", show: (t) => t.scopes.join(", ") },
          { name: "Streams", show: (t) => (t.streams ? t.streams.join(", ") : "all") },
          { name: "Made", show: (t) => f.moment(t.created_at) },
          { name: "Until", show: (t) => (t.expires_at ? f.moment(t.expires_at) : "–") },
          {
            name: "",
            show: (t) =>
              !t.revoked_at &&
              button(
                "Revoke",
                () =>
                  ask({
                    title: `Revoke ${t.name}?`,
                    action: "Revoke it",
                    danger: true,
                    body: () =>
                      h("p", {}, "Whoever uses it is refused within a second. A revoked token stays revoked."),
                    act: async () => {
                      await remove(`api/tokens/${encodeURIComponent(t.id)}`);
                      ctx.refresh();
                      return "Revoked.";
                    },
                  }),
                "small danger",
              ),
          },
        ],
        rows,
        { keyOf: (t) => t.id, rowClass: (t) => (t.revoked_at ? "is-over" : null), empty: "There are none." },
      ),
    ),
  ],
};
