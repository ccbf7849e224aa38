// What can be done to a consumer; each asks first, and says what it will do.

import { h } from "../view.js";
import { get, post, patch, remove, consumerPath } from "../api.js";
import { toStream, ask, bound, field, note, fail } from "../ui.js";
import { trial } from "./filter_trial.js";
import * as f from "../format.js";

export async function act(ctx, call, said) {
  try {
    await call();
    note(said);
    ctx.refresh();
  } catch (error) {
    fail(error);
  }
}

export function seek(ctx, c) {
  const path = consumerPath(c.stream, c.name, "seek");
  let asked = 0;
  const look = async (s, redraw) => {
    const mine = ++asked;
    s.preview = null;
    const to = target(s);
    if (!to) return redraw();
    try {
      const preview = await get(path, { to });
      if (mine === asked) s.preview = preview;
    } catch (error) {
      if (mine === asked) s.preview = { error };
    }
    redraw();
  };
  const target = (s) =>
    s.where === "time" ? s.time && new Date(s.time).toISOString() : s.where === "seq" ? s.seq : s.where;
  return ask({
    title: `Move ${c.name}`,
    action: "Move it",
    danger: true,
    state: { where: "time", time: "", seq: "", preview: null },
    ready: (s) => s.preview && !s.preview.error,
    body: (s, redraw) => [
      field(
        "To",
        h(
          "select",
          {
            value: s.where,
            onchange: (e) => {
              s.where = e.target.value;
              look(s, redraw);
            },
          },
          [
            ["time", "a time"],
            ["seq", "a seq"],
            ["beginning", "the beginning"],
            ["end", "the end"],
          ].map(([v, t]) => h("option", { value: v }, t)),
        ),
      ),
      s.where === "time" &&
        field(
          "Time, local",
          h("input", {
            type: "datetime-local",
            step: 1,
            value: s.time,
            oninput: (e) => {
              s.time = e.target.value;
              look(s, redraw);
            },
          }),
        ),
      s.where === "seq" &&
        field(
          "Seq",
          h("input", {
            type: "number",
            min: 1,
            value: s.seq,
            oninput: (e) => {
              s.seq = e.target.value;
              look(s, redraw);
            },
          }),
        ),
      s.preview &&
        (s.preview.error
          ? h("p", { class: "warn" }, s.preview.error.message)
          : h(
              "div",
              { class: "preview" },
              h(
                "p",
                {},
                s.preview.again
                  ? [
                      "About ",
                      h("b", {}, f.count(s.preview.again)),
                      " messages that it has been given already come again.",
                    ]
                  : "Nothing comes again.",
              ),
              h(
                "p",
                {},
                s.preview.passed_over
                  ? [
                      "About ",
                      h("b", {}, f.count(s.preview.passed_over)),
                      " messages that it has not read are passed over.",
                    ]
                  : "Nothing unread is passed over.",
              ),
              h(
                "p",
                {},
                `What is in flight (${f.count(c.in_flight)}) or parked (${f.count(c.parked)}) is forgotten; of it, what is seq ${f.count(s.preview.seq)} or later comes again.`,
              ),
            )),
    ],
    act: async (s) => {
      await post(path, { to: target(s) });
      ctx.refresh();
      return `${c.name} was moved.`;
    },
  });
}

export function edit(ctx, c) {
  const number = (v) => (v === "" ? null : Number(v));
  const seconds = (v) => (v == null ? "" : v / 1000);
  return ask({
    title: `Limits of ${c.name}`,
    action: "Change them",
    state: {
      ack_wait: seconds(c.ack_wait_ms),
      max_deliver: c.max_deliver ?? "",
      max_ack_pending: c.max_ack_pending ?? "",
      max_concurrency: c.max_concurrency ?? "",
      release: seconds(c.release_interval_ms),
      filter: (c.filter || []).join(", "),
    },
    body: (s, redraw) => [
      field(
        "Seconds for a message (ack_wait)",
        h("input", { type: "number", min: 0.1, step: "any", required: true, ...bound(s, "ack_wait") }),
      ),
      field(
        "Attempts before it is a dead letter",
        h("input", { type: "number", min: 1, ...bound(s, "max_deliver") }),
        "Empty: tried for ever",
      ),
      field(
        "In flight at once, of all workers",
        h("input", { type: "number", min: 1, ...bound(s, "max_ack_pending") }),
        "Empty: no limit",
      ),
      field(
        "At once in each lane or channel",
        h("input", { type: "number", min: 0, ...bound(s, "max_concurrency") }),
        "Of streams with lanes by key or channel. Empty: no limit",
      ),
      field(
        "Seconds between messages of a channel",
        h("input", { type: "number", min: 0, step: "any", ...bound(s, "release") }),
      ),
      field(
        "Filter",
        h("input", { placeholder: "orders.*.large, refunds.>", ...bound(s, "filter", redraw) }),
        "Patterns of keys, with commas between them. Empty: all",
      ),
      trial(c.stream, s, redraw),
    ],
    act: async (s) => {
      const wanted = {
        ack_wait_ms: Math.round(s.ack_wait * 1000),
        max_deliver: number(s.max_deliver),
        max_ack_pending: number(s.max_ack_pending),
        max_concurrency: number(s.max_concurrency),
        release_interval_ms: s.release === "" ? null : Math.round(s.release * 1000),
        filter: s.filter.trim() ? s.filter.split(",").map((x) => x.trim()) : null,
      };
      const changed = Object.fromEntries(
        Object.entries(wanted).filter(([k, v]) => JSON.stringify(v) !== JSON.stringify(c[k] ?? null)),
      );
      if (Object.keys(changed).length) await patch(consumerPath(c.stream, c.name), changed);
      ctx.refresh();
      return Object.keys(changed).length ? `Changed: ${Object.keys(changed).join(", ")}.` : "Nothing was changed.";
    },
  });
}

/** Runs a call in steps until it says that there is no more. */
async function inSteps(step, progress, word) {
  let total = 0,
    more = null;
  do {
    const done = await step(more);
    total += done.count;
    more = done.more;
    progress(`${f.count(total)} ${word} so far`);
  } while (more);
  return total;
}

export function discard(ctx, c) {
  return ask({
    title: `Discard messages of ${c.name}`,
    action: "Discard them",
    danger: true,
    state: { filter: "", older: "", typed: "" },
    ready: (s) => s.filter || s.older || s.typed === c.name,
    body: (s, redraw) => [
      h(
        "p",
        {},
        "Messages that are unread, delayed, parked or in flight are given up: this consumer is never handed them. Other consumers keep theirs.",
      ),
      field("Whose keys are like", h("input", { placeholder: "orders.acme.>", ...bound(s, "filter", redraw) })),
      field("Older than, minutes", h("input", { type: "number", min: 0, step: "any", ...bound(s, "older", redraw) })),
      !s.filter &&
        !s.older &&
        field(`Or type ${c.name} to discard all ${f.count(c.lag)}`, h("input", { ...bound(s, "typed", redraw) })),
    ],
    act: async (s, progress) => {
      const which =
        s.filter || s.older
          ? { filter: s.filter || null, older_than_ms: s.older ? Math.round(s.older * 60e3) : null }
          : { all: true };
      const total = await inSteps(
        async (go_on) => {
          const d = await post(consumerPath(c.stream, c.name, "discard"), { ...which, go_on });
          return { count: d.discarded, more: d.more };
        },
        progress,
        "discarded",
      );
      ctx.refresh();
      return `${f.count(total)} messages were discarded.`;
    },
  });
}

export function drop(ctx, c) {
  return ask({
    title: `Remove the consumer ${c.name}?`,
    action: "Remove it",
    danger: true,
    state: { typed: "" },
    ready: (s) => s.typed === c.name,
    body: (s, redraw) => [
      h("p", {}, "Its progress goes and does not come back. Messages and dead letters stay in their streams."),
      field(`Type ${c.name} to say that you mean it`, h("input", { ...bound(s, "typed", redraw) })),
    ],
    act: async () => {
      await remove(consumerPath(c.stream, c.name));
      ctx.go(toStream(c.stream));
      return `${c.name} is gone.`;
    },
  });
}

export function retry(ctx, c, seqs) {
  return ask({
    title: "Try again now?",
    action: "Try again",
    body: () =>
      h(
        "p",
        {},
        seqs
          ? `Message ${f.count(seqs[0])} is handed out at once instead of at its time.`
          : `All ${f.count(c.parked)} parked messages are handed out at once instead of at their times.`,
      ),
    act: async () => {
      const d = await post(consumerPath(c.stream, c.name, "retry"), seqs ? { seqs } : { all: true });
      ctx.refresh();
      return `${f.count(d.retried)} are due now.`;
    },
  });
}
