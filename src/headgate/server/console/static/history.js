// How it was in the last hour or day, as the database has it.

import { get } from "./api.js";

export const MINUTES = { hour: 60, day: 1440 };

/** Looks at the history of something; asks again only every ten seconds. */
export async function charts(ctx, path, minutes) {
  const state = ctx.state;
  const key = `${path} ${minutes}`;
  const now = Date.now();
  if (state.historyKey !== key || now - state.historyAt > 10_000) {
    const rows = await get(path, { minutes }).catch((error) => {
      if (error.status === 403) return []; // a token for some streams is shown no sums of all
      throw error;
    });
    Object.assign(state, { historyKey: key, historyAt: now, history: rows });
  }
  const rows = state.history.map((r) => ({ ...r, at: Date.parse(r.at) }));
  return {
    rows,
    /** The lines of a chart: of("Sent", "sent", …). */
    of: (...names) => ({
      // of what is kept: a young database fills the chart, too
      from: Math.max(now - minutes * 60e3, Math.min(rows[0]?.at ?? now, now - 300e3)),
      to: now,
      hover: state.hover,
      onhover: (at) => {
        state.hover = at;
        ctx.redraw();
      },
      lines: names.flatMap((name, i) => (i % 2 ? [] : [{ name, values: rows.map((r) => [r.at, r[names[i + 1]]]) }])),
    }),
  };
}
