// A token, once: the server keeps it in a cookie that scripts cannot read.

import { h } from "../view.js";
import { call, session } from "../api.js";
import { failure } from "../ui.js";

async function enter(ctx, token) {
  ctx.state.error = null;
  try {
    session.me = await call("POST", "login", undefined, {
      headers: { Authorization: `Bearer ${token.trim()}` },
      quiet: true,
    });
    location.replace("#" + (ctx.query.next?.startsWith("/") ? ctx.query.next : "/"));
  } catch (error) {
    ctx.state.error = error;
    ctx.redraw();
  }
}

export default {
  isBare: true,
  every: 0,
  title: () => "Log in",
  async load(ctx) {
    const token = ctx.query.token;
    if (token) {
      history.replaceState(null, "", "#/login"); // so that it stays in no history
      await enter(ctx, token);
    }
    return {};
  },
  view: (ctx) =>
    h(
      "main",
      { class: "login" },
      h(
        "form",
        {
          class: "panel",
          onsubmit: (e) => {
            e.preventDefault();
            enter(ctx, ctx.state.token || "");
          },
        },
        h("h1", {}, h("img", { src: "console/icon.svg", alt: "", width: 28, height: 28 }), "Headgate"),
        h(
          "label",
          { class: "field" },
          h("span", {}, "Token"),
          h("input", {
            type: "password",
            autocomplete: "current-password",
            spellcheck: "false",
            autofocus: true,
            value: ctx.state.token || "",
            placeholder: "hg_…",
            oninput: (e) => {
              ctx.state.token = e.target.value;
            },
          }),
        ),
        ctx.state.error && failure(ctx.state.error),
        h("button", { class: "button primary", type: "submit" }, "Log in"),
        h(
          "p",
          { class: "quiet" },
          "The first token is in the file that ",
          h("code", {}, "headgate up"),
          " names as it starts: ",
          h("code", {}, ".headgate/token"),
          ". Others: ",
          h("code", {}, "headgate token add NAME --scope monitor"),
          ".",
        ),
      ),
    ),
};
