// What a filter would let through of the newest messages, before anybody relies on it.

import { h } from "../view.js";
import { get, streamPath } from "../api.js";
import { button } from "../ui.js";
import * as f from "../format.js";

/** Goes beside a field for a filter, `state.filter`. */
export function trial(stream, state, redraw) {
  const look = async () => {
    try {
      state.trial = { of: state.filter, ...(await get(streamPath(stream, "filter"), { filter: state.filter })) };
    } catch (error) {
      state.trial = { of: state.filter, error };
    }
    redraw();
  };
  const t = state.trial?.of === state.filter ? state.trial : null;
  const keys = (names) => names.map((name) => h("code", { class: "key-of" }, name));
  return [
    h(
      "div",
      {},
      h(
        "button",
        { class: "button small", type: "button", onclick: look, disabled: !state.filter.trim() },
        "Try it on the last 1,000 messages",
      ),
    ),
    t?.error && h("p", { class: "warn" }, t.error.message),
    t &&
      !t.error &&
      h(
        "div",
        { class: "trial" },
        h("p", {}, h("b", {}, f.count(t.passed)), ` of ${f.count(t.looked)} would come.`),
        t.passing.length > 0 && h("p", {}, "Such as ", keys(t.passing)),
        t.others.length > 0 && h("p", { class: "quiet" }, "And not ", keys(t.others)),
      ),
  ];
}
