// What was found, as a file: NDJSON or CSV, fetched page by page, up to a limit.

import { get, streamPath } from "./api.js";
import { ask, button } from "./ui.js";
import { h } from "./view.js";
import * as f from "./format.js";

const MOST = 10_000; // messages of one file
const PAGE = 500;

const FORMS = {
  NDJSON: { type: "application/x-ndjson", head: "", row: (m) => f.flat(m) },
  CSV: {
    type: "text/csv",
    head: "seq,created_at,key,data,headers\n",
    row: (m) =>
      [m.seq, m.created_at, m.key ?? "", text(m.data), m.headers ? f.flat(m.headers) : ""].map(cell).join(","),
  },
};
const text = (data) => (typeof data === "string" ? data : f.flat(data));
// (what begins like a formula is none in a spreadsheet)
const cell = (v) =>
  `"${String(v)
    .replace(/^[=+\-@\t\r]/, "'$&")
    .replaceAll('"', '""')}"`;

/** Buttons that save all messages that a query finds. */
export const saving = (stream, query) =>
  h(
    "span",
    { class: "actions" },
    Object.keys(FORMS).map((form) => button(`Save ${form}`, () => save(stream, query, form), "small")),
  );

function save(stream, query, form) {
  const name = `${stream}.${form.toLowerCase()}`;
  return ask({
    title: `Save messages as ${form}`,
    action: "Save",
    body: () => [
      h("p", {}, `All that fit the filter, from this page on, up to ${f.count(MOST)}, go into ${name}.`),
    ],
    act: async (_, progress) => {
      const { head, row, type } = FORMS[form];
      const lines = [];
      const at = { ...query };
      while (lines.length < MOST) {
        const page = await get(
          streamPath(stream, "messages"),
          { ...at, limit: Math.min(PAGE, MOST - lines.length) },
          { whole: true },
        );
        lines.push(...page.data.map(row));
        progress(`${f.count(lines.length)} so far`);
        const next = page.next ?? (page.data.length >= PAGE ? page.data.at(-1).seq : null);
        if (next == null) break;
        at[query.sort === "seq_asc" ? "after" : "before"] = next;
      }
      const url = URL.createObjectURL(new Blob([head, lines.join("\n"), "\n"], { type }));
      const a = Object.assign(document.createElement("a"), { href: url, download: name });
      a.click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
      return `${f.count(lines.length)} messages are in ${name}.`;
    },
  });
}
