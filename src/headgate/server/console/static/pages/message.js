// One message: what it is, where it stands with every consumer and why, and its whole life.

import { h } from "../view.js";
import { get, post, streamPath, consumerPath, isAdmin, may } from "../api.js";
import {
  link,
  toStream,
  toConsumer,
  toMessage,
  chip,
  table,
  button,
  ask,
  facts,
  copies,
  copy,
  section,
} from "../ui.js";
import { payload } from "../payload.js";
import { why } from "../why.js";
import { send } from "./stream_actions.js";
import * as f from "../format.js";

const LONG = 100_000; // characters of data that are fetched unasked

const WORDS = {
  sent: "sent",
  gone: "removed from the stream",
  delivered: "handed to a worker",
  failed: "failed",
  expired: "its time was up",
  dead: "became a dead letter",
  redriven: "redriven",
  replayed: "replayed",
  discarded: "discarded",
  parked: "waits for another attempt",
  delayed: "is delayed",
  blocked: "waits for an earlier one of its key",
  released: "is due",
  waiting: "is not read yet",
  skipped: "is passed over by the filter",
  done: "is done",
};

function replay(ctx, stream, seq, consumer) {
  return ask({
    title: `Replay ${f.count(seq)} to ${consumer}?`,
    action: "Replay it",
    body: () =>
      h("p", {}, `${consumer} is handed this message again; it does not move, and no other consumer sees it again.`),
    act: async () => {
      const d = await post(consumerPath(stream, consumer, "replay"), { seqs: [seq] });
      ctx.refresh();
      return d.replayed
        ? "It comes again."
        : "It was passed over: it is in flight or parked, not read yet, or filtered out.";
    },
  });
}

function discard(ctx, stream, seq, consumer) {
  return ask({
    title: `Discard ${f.count(seq)} for ${consumer}?`,
    action: "Discard it",
    danger: true,
    body: () => h("p", {}, `${consumer} is never handed it (again). Other consumers keep it.`),
    act: async () => {
      const d = await post(consumerPath(stream, consumer, "discard"), { seqs: [seq] });
      ctx.refresh();
      return d.discarded ? "Discarded." : "There was nothing to discard.";
    },
  });
}

/** How long after what was before it. */
function since(before, e) {
  if (!before?.at || !e.at) return null;
  const seconds = (Date.parse(e.at) - Date.parse(before.at)) / 1000;
  return seconds > 0 ? h("i", {}, ` + ${f.length(seconds)}`) : null;
}

const traceOf = (headers) => /^00-([0-9a-f]{32})-/.exec(headers?.traceparent || "")?.[1];

export default {
  name: "message",
  title: (ctx) => `${ctx.params.stream} ${ctx.params.seq}`,
  async load(ctx) {
    const { stream, seq } = ctx.params;
    const path = streamPath(stream, "messages", seq);
    const life = await get(path + "/life");
    let found = null;
    try {
      found = await get(path, { data_limit: ctx.state.isWhole ? null : LONG });
    } catch (error) {
      if (error.status !== 404) throw error; // it was removed: its life is still known
    }
    const consumers = found?.consumers.length ? await get(streamPath(stream, "consumers")) : [];
    const reasons = {};
    for (const state of found?.consumers || []) {
      const c = consumers.find((x) => x.name === state.consumer);
      if (c) reasons[state.consumer] = await why(stream, found.message, state, c);
    }
    return { life, found, reasons };
  },
  view(ctx, { life, found, reasons }) {
    const { stream } = ctx.params;
    const seq = Number(ctx.params.seq);
    const m = found?.message;
    return [
      h(
        "div",
        { class: "title" },
        h("h1", {}, f.count(seq), " ", h("small", {}, "of ", link(toStream(stream), stream))),
        h("span", { class: "grow" }),
        link(toMessage(stream, Math.max(1, seq - 1)), "← before"),
        link(toMessage(stream, seq + 1), "after →"),
        copies({
          path: streamPath(stream, "messages", String(seq)),
          cli: ["message", "show", stream, String(seq)],
          sql: `select * from headgate.message_life('${stream}', ${seq});`,
          python: `hg.stream("${stream}").message_life(${seq})`,
        }),
        m &&
          may("produce") &&
          !m.cut &&
          button("Edit and send…", () =>
            send(stream, {
              title: "Edit and send",
              data: typeof m.data === "string" ? m.data : f.json(m.data),
              key: m.key ?? "",
              headers: m.headers ? f.json(m.headers) : "",
            }),
          ),
      ),
      !m &&
        h(
          "p",
          { class: "quiet" },
          "The message itself is not in the stream any more. This is what is still known of it.",
        ),
      h(
        "div",
        { class: "columns" },
        m &&
          section(
            "Message",
            facts([
              ["Key", m.key != null && h("code", {}, m.key)],
              ["Sent", f.moment(m.created_at)],
              ["Not before", m.deliver_at && f.moment(m.deliver_at)],
              [
                "Trace",
                traceOf(m.headers) && [
                  h("code", {}, traceOf(m.headers)),
                  " ",
                  button("Copy", () => copy(traceOf(m.headers)), "small"),
                ],
              ],
            ]),
            payload(m.data, {
              cut: m.cut,
              all: () => {
                ctx.state.isWhole = true;
                ctx.refresh();
              },
            }),
            m.headers && [h("h3", {}, "Headers"), payload(m.headers)],
          ),
        section(
          "Its life",
          h(
            "ol",
            { class: "life" },
            life.map((e, i) =>
              h(
                "li",
                { key: i, class: `event is-${e.event}` },
                h("span", { class: "when" }, e.at ? f.moment(e.at) : "now", since(life[i - 1], e)),
                h(
                  "span",
                  {},
                  h("b", {}, e.consumer ? link(toConsumer(stream, e.consumer), e.consumer) : "the message", " "),
                  WORDS[e.event] || e.event,
                  e.attempt ? `, attempt ${e.attempt}` : "",
                  e.until && ` until ${f.moment(e.until)}`,
                  e.worker && h("small", { class: "quiet" }, " ", e.worker),
                  e.error && h("pre", { class: "error" }, e.error),
                ),
              ),
            ),
          ),
        ),
      ),
      m &&
        section(
          "Where it stands, and why",
          table(
            [
              { name: "Consumer", show: (s) => link(toConsumer(stream, s.consumer), s.consumer) },
              { name: "State", show: (s) => chip(s.state) },
              { name: "Attempts", number: true, show: (s) => s.attempt || "–" },
              {
                name: "Why is this waiting?",
                wide: true,
                show: (s) => {
                  const r = reasons[s.consumer];
                  return r
                    ? [
                        r.to ? link(r.to, r.text) : r.text,
                        (r.error || s.last_error) && h("pre", { class: "error" }, r.error || s.last_error),
                      ]
                    : "It does not wait.";
                },
              },
              {
                name: "",
                show: (s) =>
                  isAdmin() &&
                  h(
                    "span",
                    { class: "actions" },
                    s.state === "parked" &&
                      button(
                        "Now",
                        () =>
                          ask({
                            title: "Try again now?",
                            action: "Try again",
                            body: () => h("p", {}, "It is handed out at once instead of at its time."),
                            act: async () => {
                              await post(consumerPath(stream, s.consumer, "retry"), { seqs: [seq] });
                              ctx.refresh();
                              return "It is due now.";
                            },
                          }),
                        "small",
                      ),
                    ["done", "discarded", "dead"].includes(s.state) &&
                      button("Replay", () => replay(ctx, stream, seq, s.consumer), "small"),
                    ["available", "parked", "delivered"].includes(s.state) &&
                      button("Discard", () => discard(ctx, stream, seq, s.consumer), "small danger"),
                  ),
              },
            ],
            found.consumers,
            { keyOf: (s) => s.consumer, empty: "This stream has no consumers." },
          ),
        ),
    ];
  },
};
