// What can be done to a stream; each asks first, and says what it will do.

import { h } from "../view.js";
import { post, patch, remove, streamPath } from "../api.js";
import { toConsumer, ask, bound, field } from "../ui.js";
import { difference } from "../difference.js";
import { trial } from "./filter_trial.js";
import * as f from "../format.js";

export function send(
  stream,
  { data = '{"hello": "world"}', key = "", headers = "", title = `Send to ${stream}`, about, done } = {},
) {
  const state = { data, key, channel: "", headers };
  return ask({
    title,
    action: "Send",
    state,
    body: (s, redraw) => [
      about && h("p", {}, about),
      field("Key", h("input", { ...bound(s, "key") })),
      field("Channel", h("input", { ...bound(s, "channel") })),
      field(
        "Data, as JSON",
        h("textarea", { rows: 8, spellcheck: "false", ...bound(s, "data", redraw) }),
        isJson(s.data) ? "" : "This is not JSON: it is sent as text.",
      ),
      field("Headers, as JSON", h("textarea", { rows: 2, spellcheck: "false", ...bound(s, "headers") })),
      s.data !== data && title.startsWith("Edit") && [h("b", {}, "What changes"), difference(data, s.data)],
    ],
    act: async (s) => {
      // the text itself is sent, so that large integers stay what they are
      const text = isJson(s.data) ? s.data : JSON.stringify(s.data);
      const more = JSON.stringify({
        key: s.key || null,
        channel: s.channel || null,
        headers: s.headers ? JSON.parse(s.headers) : null,
      });
      const answer = await post(streamPath(stream, "messages"), `{"messages":[{"data":${text},${more.slice(1)}]}`);
      const said = await done?.(answer.seqs[0]);
      return said || `Sent as ${answer.seqs[0]}.`;
    },
  });
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export function addConsumer(ctx, stream) {
  return ask({
    title: `New consumer of ${stream}`,
    action: "Make it",
    state: { name: "", filter: "", order: "none", start: "beginning", max_deliver: "" },
    ready: (s) => s.name,
    body: (s, redraw) => [
      field("Name", h("input", { required: true, ...bound(s, "name", redraw) })),
      field(
        "Filter",
        h("input", { placeholder: "orders.>", ...bound(s, "filter", redraw) }),
        "Patterns of keys, with commas between them: * is one part, > the rest. Empty: all",
      ),
      trial(stream, s, redraw),
      field(
        "Order",
        h(
          "select",
          { ...bound(s, "order", redraw) },
          [
            ["none", "none"],
            ["key", "by key: one message of a key at a time"],
          ].map(([v, t]) => h("option", { value: v }, t)),
        ),
      ),
      field(
        "Start",
        h(
          "select",
          { ...bound(s, "start", redraw) },
          ["beginning", "end"].map((v) => h("option", { value: v }, v)),
        ),
      ),
      field(
        "Attempts before it is a dead letter",
        h("input", { type: "number", min: 1, ...bound(s, "max_deliver") }),
        "Empty: it is tried for ever",
      ),
    ],
    act: async (s) => {
      await post(streamPath(stream, "consumers"), {
        name: s.name,
        filter: s.filter.trim() ? s.filter.split(",").map((x) => x.trim()) : null,
        order: s.order,
        start: s.start,
        max_deliver: s.max_deliver ? Number(s.max_deliver) : null,
      });
      ctx.go(toConsumer(stream, s.name));
      return `The consumer ${s.name} is there.`;
    },
  });
}

export function drop(ctx, stream) {
  return ask({
    title: `Remove the stream ${stream}?`,
    action: "Remove it",
    danger: true,
    state: { typed: "" },
    ready: (s) => s.typed === stream,
    body: (s, redraw) => [
      h("p", {}, "Its messages, its consumers with their progress, and its dead letters go, and do not come back."),
      field(`Type ${stream} to say that you mean it`, h("input", { ...bound(s, "typed", redraw) })),
    ],
    act: async () => {
      await remove(streamPath(stream));
      ctx.go("/streams");
      return `${stream} is gone.`;
    },
  });
}

export function edit(ctx, s) {
  const old = {
    retain: s.retain,
    hours: s.retain_up_to_ms == null ? "" : s.retain_up_to_ms / 3600e3,
    megabytes: s.max_storage == null ? "" : s.max_storage / 2 ** 20,
  };
  return ask({
    title: `Retention of ${s.name}`,
    action: "Change it",
    state: { ...old },
    body: (x, redraw) => [
      field(
        "Keep",
        h(
          "select",
          { ...bound(x, "retain", redraw) },
          ["forever", "until_acked", "until_archived"].map((v) => h("option", { value: v }, v.replace("_", " "))),
        ),
      ),
      field(
        "No longer than, hours",
        h("input", { type: "number", min: 0, step: "any", ...bound(x, "hours") }),
        "Empty: no limit. What is older is removed, read or not.",
      ),
      field(
        "No more than, MB",
        h("input", { type: "number", min: 1, step: "any", ...bound(x, "megabytes") }),
        "Empty: no limit. Then the oldest messages go.",
      ),
    ],
    act: async (x) => {
      await patch(streamPath(s.name), {
        retain: x.retain,
        retain_up_to_ms: x.hours === "" ? null : Math.round(x.hours * 3600e3),
        max_storage: x.megabytes === "" ? null : Math.round(x.megabytes * 2 ** 20),
      });
      ctx.refresh();
      return "Changed.";
    },
  });
}
