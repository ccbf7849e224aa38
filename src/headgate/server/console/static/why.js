// Why a message is not being worked on, in a sentence: {text, to?, error?}, or null where it does not wait.

import { get, consumerPath } from "./api.js";
import { toConsumer, toMessage } from "./ui.js";
import * as f from "./format.js";

const DONE = ["done", "skipped", "discarded"];

export async function why(stream, message, state, c) {
  if (DONE.includes(state.state)) return null;
  if (state.state === "dead")
    return {
      text: "It failed too often, and is a dead letter.",
      to: "/dead?" + new URLSearchParams({ stream, consumer: state.consumer }),
    };
  if (state.state === "delivered")
    return { text: `${state.worker || "A worker"} has it, until ${f.moment(state.not_visible_until)}.` };
  if (c.paused) return { text: "The consumer is paused." };
  if (state.state === "parked") return parked(stream, message, state, c);
  const before = c.order === "key" && (await holder(stream, message, c.name));
  if (before) return behind(stream, before);
  if (c.max_ack_pending != null && c.in_flight >= c.max_ack_pending)
    return { text: `The consumer has as many in flight as it may: ${f.count(c.max_ack_pending)}.` };
  if (!c.rate && !c.in_flight) return { text: "Nobody receives: there is no worker, or none asks." };
  const place = `It is one of ${f.count(c.unread)} that wait`;
  if (c.max_concurrency != null)
    return {
      text: `${place}, and each channel may have ${c.max_concurrency} in hand at once: see the tenants.`,
      to: toConsumer(stream, c.name) + "?tab=channels",
    };
  return { text: `${place}, at ${f.rate(c.rate)}.` };
}

async function parked(stream, message, state, c) {
  const due = state.not_visible_until && Date.parse(state.not_visible_until);
  if (!due) {
    const before = await holder(stream, message, c.name);
    return before ? behind(stream, before) : { text: "It waits for an earlier message of its key." };
  }
  if (due <= Date.now()) return { text: "It is due, and waits for a worker to ask." };
  const what = state.attempt ? `Attempt ${state.attempt} failed` : "It is delayed";
  return { text: `${what}: the next one is due ${f.moment(state.not_visible_until)}.`, error: state.last_error };
}

/** What is before a message of its key, and not done. */
async function holder(stream, message, consumer) {
  if (!message.key) return null;
  const [first] = await get(consumerPath(stream, consumer, "keys", message.key), { limit: 1 });
  return first && first.seq < message.seq && first.state !== "more" ? first : null;
}

const behind = (stream, before) => ({
  text: `It waits for message ${f.count(before.seq)} of the same key.`,
  to: toMessage(stream, before.seq),
});
