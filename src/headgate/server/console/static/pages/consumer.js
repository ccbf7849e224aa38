// One consumer: how far it is, what it has in hand, what waits and why; and what can be done about it.

import { h } from "../view.js";
import { get, post, patch, remove, consumerPath, isAdmin } from "../api.js";
import { link, toStream, toMessage, chip, table, tiles, button, ask, field, facts, tabs, copies, note, fail } from "../ui.js";
import { chart } from "../charts.js";
import { charts, MINUTES } from "../history.js";
import { drained } from "./overview.js";
import { channelTable } from "./tenants.js";
import * as f from "../format.js";

const TABS = [["parked", "Parked"], ["flight", "In flight"], ["unread", "Unread"], ["failures", "Failed attempts"], ["workers", "Workers"], ["channels", "Tenants"], ["settings", "Settings"]];

async function act(ctx, call, said) {
  try {
    await call();
    note(said);
    ctx.refresh();
  } catch (error) {
    fail(error);
  }
}

function seek(ctx, c) {
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
  const target = (s) => (s.where === "time" ? s.time && new Date(s.time).toISOString() : s.where === "seq" ? s.seq : s.where);
  return ask({
    title: `Move ${c.name}`, action: "Move it", danger: true, state: { where: "time", time: "", seq: "", preview: null }, ready: (s) => s.preview && !s.preview.error,
    body: (s, redraw) => [
      field("To", h("select", { value: s.where, onchange: (e) => { s.where = e.target.value; look(s, redraw); } }, [["time", "a time"], ["seq", "a seq"], ["beginning", "the beginning"], ["end", "the end"]].map(([v, t]) => h("option", { value: v }, t)))),
      s.where === "time" && field("Time, local", h("input", { type: "datetime-local", step: 1, value: s.time, oninput: (e) => { s.time = e.target.value; look(s, redraw); } })),
      s.where === "seq" && field("Seq", h("input", { type: "number", min: 1, value: s.seq, oninput: (e) => { s.seq = e.target.value; look(s, redraw); } })),
      s.preview && (s.preview.error ? h("p", { class: "warn" }, s.preview.error.message) : h("div", { class: "preview" },
        h("p", {}, s.preview.again ? ["About ", h("b", {}, f.count(s.preview.again)), " messages that it has been given already come again."] : "Nothing comes again."),
        h("p", {}, s.preview.passed_over ? ["About ", h("b", {}, f.count(s.preview.passed_over)), " messages that it has not read are passed over."] : "Nothing unread is passed over."),
        h("p", {}, `What is in flight (${f.count(c.in_flight)}) or parked (${f.count(c.parked)}) is forgotten; of it, what is seq ${f.count(s.preview.seq)} or later comes again.`))),
    ],
    act: async (s) => { await post(path, { to: target(s) }); ctx.refresh(); return `${c.name} was moved.`; },
  });
}

function edit(ctx, c) {
  const number = (v) => (v === "" ? null : Number(v));
  const seconds = (v) => (v == null ? "" : v / 1000);
  return ask({
    title: `Limits of ${c.name}`, action: "Change them",
    state: { ack_wait: seconds(c.ack_wait_ms), max_deliver: c.max_deliver ?? "", max_ack_pending: c.max_ack_pending ?? "", max_concurrency: c.max_concurrency ?? "", release: seconds(c.release_interval_ms), filter: (c.filter || []).join(", ") },
    body: (s) => [
      field("Seconds for a message (ack_wait)", h("input", { type: "number", min: 0.1, step: "any", required: true, value: s.ack_wait, oninput: (e) => { s.ack_wait = e.target.value; } })),
      field("Attempts before it is a dead letter", h("input", { type: "number", min: 1, value: s.max_deliver, oninput: (e) => { s.max_deliver = e.target.value; } }), "Empty: tried for ever"),
      field("In flight at once, of all workers", h("input", { type: "number", min: 1, value: s.max_ack_pending, oninput: (e) => { s.max_ack_pending = e.target.value; } }), "Empty: no limit"),
      field("At once in each lane or channel", h("input", { type: "number", min: 0, value: s.max_concurrency, oninput: (e) => { s.max_concurrency = e.target.value; } }), "Of streams with lanes by key or channel. Empty: no limit"),
      field("Seconds between messages of a channel", h("input", { type: "number", min: 0, step: "any", value: s.release, oninput: (e) => { s.release = e.target.value; } })),
      field("Filter", h("input", { value: s.filter, oninput: (e) => { s.filter = e.target.value; } }), "Patterns of keys, with commas between them. Empty: all"),
    ],
    act: async (s) => {
      const wanted = {
        ack_wait_ms: Math.round(s.ack_wait * 1000), max_deliver: number(s.max_deliver), max_ack_pending: number(s.max_ack_pending), max_concurrency: number(s.max_concurrency),
        release_interval_ms: s.release === "" ? null : Math.round(s.release * 1000), filter: s.filter.trim() ? s.filter.split(",").map((x) => x.trim()) : null,
      };
      const changed = Object.fromEntries(Object.entries(wanted).filter(([k, v]) => JSON.stringify(v) !== JSON.stringify(c[k] ?? null)));
      if (Object.keys(changed).length) await patch(consumerPath(c.stream, c.name), changed);
      ctx.refresh();
      return Object.keys(changed).length ? `Changed: ${Object.keys(changed).join(", ")}.` : "Nothing was changed.";
    },
  });
}

/** Runs a call in steps until it says that there is no more. */
async function inSteps(step, progress, word) {
  let total = 0, more = null;
  do {
    const done = await step(more);
    total += done.count;
    more = done.more;
    progress(`${f.count(total)} ${word} so far`);
  } while (more);
  return total;
}

function discard(ctx, c) {
  return ask({
    title: `Discard messages of ${c.name}`, action: "Discard them", danger: true, state: { filter: "", older: "", typed: "" }, ready: (s) => s.filter || s.older || s.typed === c.name,
    body: (s, redraw) => [
      h("p", {}, "Messages that are unread, delayed, parked or in flight are given up: this consumer is never handed them. Other consumers keep theirs."),
      field("Whose keys are like", h("input", { value: s.filter, placeholder: "orders.acme.>", oninput: (e) => { s.filter = e.target.value; redraw(); } })),
      field("Older than, minutes", h("input", { type: "number", min: 0, step: "any", value: s.older, oninput: (e) => { s.older = e.target.value; redraw(); } })),
      !s.filter && !s.older && field(`Or type ${c.name} to discard all ${f.count(c.lag)}`, h("input", { value: s.typed, oninput: (e) => { s.typed = e.target.value; redraw(); } })),
    ],
    act: async (s, progress) => {
      const which = s.filter || s.older ? { filter: s.filter || null, older_than_ms: s.older ? Math.round(s.older * 60e3) : null } : { all: true };
      const total = await inSteps(async (go_on) => { const d = await post(consumerPath(c.stream, c.name, "discard"), { ...which, go_on }); return { count: d.discarded, more: d.more }; }, progress, "discarded");
      ctx.refresh();
      return `${f.count(total)} messages were discarded.`;
    },
  });
}

function drop(ctx, c) {
  return ask({
    title: `Remove the consumer ${c.name}?`, action: "Remove it", danger: true, state: { typed: "" }, ready: (s) => s.typed === c.name,
    body: (s, redraw) => [h("p", {}, "Its progress goes and does not come back. Messages and dead letters stay in their streams."), field(`Type ${c.name} to say that you mean it`, h("input", { value: s.typed, oninput: (e) => { s.typed = e.target.value; redraw(); } }))],
    act: async () => { await remove(consumerPath(c.stream, c.name)); ctx.go(toStream(c.stream)); return `${c.name} is gone.`; },
  });
}

function retry(ctx, c, seqs) {
  return ask({
    title: "Try again now?", action: "Try again", body: () => h("p", {}, seqs ? `Message ${f.count(seqs[0])} is handed out at once instead of at its time.` : `All ${f.count(c.parked)} parked messages are handed out at once instead of at their times.`),
    act: async () => { const d = await post(consumerPath(c.stream, c.name, "retry"), seqs ? { seqs } : { all: true }); ctx.refresh(); return `${f.count(d.retried)} are due now.`; },
  });
}

const peeked = (c, more) => [
  { name: "Seq", number: true, show: (m) => link(toMessage(c.stream, m.message.seq), f.count(m.message.seq)) },
  { name: "Key", show: (m) => h("code", {}, m.message.key ?? "") },
  { name: "Sent", show: (m) => f.moment(m.message.created_at) },
  ...more,
];

export default {
  name: "consumer",
  title: (ctx) => `${ctx.params.consumer} of ${ctx.params.stream}`,
  async load(ctx) {
    const { stream, consumer } = ctx.params;
    const path = consumerPath(stream, consumer);
    const tab = ctx.query.tab || "parked";
    const rows = {
      parked: () => get(path + "/messages", { states: "parked", limit: 100, sort: "seq_asc", after: ctx.query.after }, { whole: true }),
      flight: () => get(path + "/messages", { states: "delivered", limit: 100, sort: "seq_asc", after: ctx.query.after }, { whole: true }),
      unread: () => get(path + "/messages", { states: "available", limit: 50, sort: "seq_asc", after: ctx.query.after }, { whole: true }),
      failures: () => get(`api/streams/${encodeURIComponent(stream)}/attempts`, { consumer, limit: 100 }, { whole: true }),
      workers: () => get(path + "/workers", null, { whole: true }),
      channels: () => get(path + "/channels", { limit: 100, sort: ctx.query.sort, after: ctx.query.after }, { whole: true }),
      settings: async () => ({ data: [] }),
    }[tab];
    const [c, s, history, found] = await Promise.all([get(path), get(`api/streams/${encodeURIComponent(stream)}`), charts(ctx, path + "/history", MINUTES[ctx.query.span || "hour"] || 60), rows()]);
    return { c, s, history, rows: found.data, next: found.next, tab };
  },
  view(ctx, { c, s, history, rows, next, tab }) {
    const path = consumerPath(c.stream, c.name);
    const oldest = c.oldest_unacked ? (Date.now() - Date.parse(c.oldest_unacked)) / 1000 : null;
    const named = s.lane_by !== "hash";
    return [
      h("div", { class: "title" }, h("h1", {}, c.name, " ", h("small", {}, "of ", link(toStream(c.stream), c.stream))), c.paused && chip("paused"), c.push && chip("push", c.push.url), c.leased && chip("leased"), h("span", { class: "grow" }),
        copies({ path, cli: ["consumer", "show", c.stream, c.name], sql: `select * from headgate.consumers where stream = '${c.stream}' and name = '${c.name}';`, python: `hg.stream("${c.stream}").consumer("${c.name}").info()` }),
        isAdmin() && [c.paused ? button("Resume", () => act(ctx, () => post(path + "/resume"), `${c.name} goes on.`), "primary") : button("Pause", () => act(ctx, () => post(path + "/pause"), `${c.name} is paused.`)),
          button("Move…", () => seek(ctx, c)), button("Limits…", () => edit(ctx, c)), button("Discard…", () => discard(ctx, c), "danger"), button("Remove", () => drop(ctx, c), "danger")]),
      tiles(["Lag", (c.exact ? "" : "~") + f.short(c.lag), "Unread, parked and in flight"], ["Unread", f.short(c.unread)], ["In flight", f.short(c.in_flight)], ["Parked", f.short(c.parked), `${f.count(c.due)} of them are due`],
        ["Dead", c.dead ? link(`/dead?stream=${encodeURIComponent(c.stream)}&consumer=${encodeURIComponent(c.name)}`, f.short(c.dead)) : "0", "Dead letters", c.dead > 0],
        ["Rate", f.rate(c.rate), "First attempts"], ["Oldest", f.length(oldest)], ["Drained in", drained(c, s.rate || 0), `At ${f.rate(c.rate)}, while ${f.rate(s.rate)} come in`], c.lost ? ["Lost", f.short(c.lost), "Removed by retention before it was done", true] : null),
      h("div", { class: "charts" }, chart({ title: "Lag", show: f.short, ...history.of("Lag", "lag", "In flight", "in_flight", "Parked", "parked") }), chart({ title: "Delivered a second", show: f.rate, ...history.of("Delivered", "delivered") })),
      tabs(TABS.filter(([key]) => (key !== "channels" || named) && (key !== "workers" || c.leased)), tab, (t) => ctx.set({ tab: t, after: "", sort: "" }, { replace: false })),
      h("section", { class: "panel", key: tab },
        tab === "parked" && [table(peeked(c, [
          { name: "Attempts", number: true, show: (m) => m.deliver_count }, { name: "Why", show: (m) => chip(m.reason || "parked") }, { name: "Due", show: (m) => (m.not_visible_until ? f.moment(m.not_visible_until) : "when what is before it is done") },
          { name: "Last error", wide: true, show: (m) => h("span", { class: "cut error" }, m.last_error || "") }, { name: "", show: (m) => isAdmin() && button("Now", () => retry(ctx, c, [m.message.seq]), "small") },
        ]), rows, { keyOf: (m) => m.message.seq, empty: "Nothing is parked: no message waits for another attempt." }), isAdmin() && c.parked > 0 && h("p", {}, button("Try all again now", () => retry(ctx, c)))],
        tab === "flight" && table(peeked(c, [{ name: "Attempt", number: true, show: (m) => m.deliver_count }, { name: "Until", show: (m) => f.moment(m.not_visible_until) }, { name: "Worker", wide: true, show: (m) => m.worker || "" }]), rows, { keyOf: (m) => m.message.seq, empty: "Nothing is in flight: no worker has a message in hand." }),
        tab === "unread" && table(peeked(c, [{ name: "Data", wide: true, show: (m) => h("code", { class: "cut" }, f.oneLine(m.message.data)) }]), rows, { keyOf: (m) => m.message.seq, empty: "Everything has been read." }),
        tab === "failures" && table([
          { name: "At", show: (a) => f.moment(a.at) }, { name: "Seq", number: true, show: (a) => link(toMessage(c.stream, a.seq), f.count(a.seq)) }, { name: "Attempt", number: true, show: (a) => a.attempt }, { name: "Took", number: true, show: (a) => (a.began ? f.length((Date.parse(a.at) - Date.parse(a.began)) / 1000) : "–") },
          { name: "Outcome", show: (a) => chip(a.is_dead ? "dead" : a.outcome) }, { name: "Error", wide: true, show: (a) => h("span", { class: "cut error" }, a.error || "") }, { name: "Worker", show: (a) => a.worker || "" },
        ], rows, { keyOf: (a) => a.id, empty: "No attempt has failed lately." }),
        tab === "workers" && table([{ name: "Worker", wide: true, show: (w) => w.name }, { name: "Lanes", show: (w) => f.oneLine(w.lanes.join(" "), 60) }, { name: "In flight", number: true, show: (w) => w.in_flight }, { name: "Since", show: (w) => f.moment(w.joined_at) }, { name: "Seen", show: (w) => f.moment(w.seen_at) }, { name: "Alive until", show: (w) => f.moment(w.until) }], rows, { keyOf: (w) => w.name, empty: "No worker has joined." }),
        tab === "channels" && channelTable(ctx, rows),
        tab === "settings" && facts([["Filter", c.filter ? c.filter.join(", ") : "all keys"], ["Order", c.order === "key" ? "by key: one message of a key at a time" : "none"], ["A message's time (ack_wait)", f.milliseconds(c.ack_wait_ms)], ["Attempts", c.max_deliver ?? "for ever"], ["Backoff", JSON.stringify(c.backoff)], ["In flight at most", c.max_ack_pending ?? "no limit"],
          ["At once in a channel", c.max_concurrency ?? "no limit"], ["Between messages of a channel", c.release_interval_ms && f.milliseconds(c.release_interval_ms)], ["Waiting at most", c.max_waiting], ["Leased", c.leased ? `yes, for ${f.milliseconds(c.lease_time_ms)}` : "no"], ["Pushes to", c.push?.url], ["Floor", f.count(c.floor)], ["Delivered", `${f.count(c.delivered)}, and ${f.count(c.redelivered)} again`], ["Made", f.moment(c.created_at)]]),
        next != null && h("div", { class: "pager" }, button("More", () => ctx.set({ after: next }), "small"))),
    ];
  },
};
