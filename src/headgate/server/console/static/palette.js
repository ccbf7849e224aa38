// Jump to anything by its name.

import { h, patch } from "./view.js";
import { get } from "./api.js";
import { toStream, toConsumer } from "./ui.js";

const PAGES = [
  "",
  "streams",
  "messages",
  "dead",
  "tenants",
  "push",
  "sources",
  "pipelines",
  "tokens",
  "audit",
  "doctor",
];

export function openPalette() {
  if (document.querySelector("dialog.palette")) return;
  const dialog = document.createElement("dialog");
  dialog.className = "palette";
  let found = [],
    chosen = 0,
    text = "",
    asked = 0;
  const close = () => {
    dialog.close();
    dialog.remove();
  };
  const choose = (item) => {
    close();
    location.hash = item.to;
  };
  const search = async () => {
    const mine = ++asked;
    const pages = PAGES.filter((p) => (p || "overview").includes(text.toLowerCase())).map((p) => ({
      kind: "page",
      name: p || "overview",
      to: "/" + p,
    }));
    found = pages;
    draw();
    try {
      const all = await get("api/overview", { search: text, limit: 12, sort: "name" });
      if (mine !== asked) return;
      found = [
        ...all.streams.map((s) => ({ kind: "stream", name: s.name, to: toStream(s.name) })),
        ...all.consumers.map(({ consumer: c }) => ({
          kind: "consumer",
          name: `${c.stream} / ${c.name}`,
          to: toConsumer(c.stream, c.name),
        })),
        ...pages,
      ];
      chosen = 0;
      draw();
    } catch {
      // the pages are there anyway
    }
  };
  const draw = () =>
    patch(dialog, [
      h("input", {
        type: "search",
        placeholder: "A stream, a consumer, a page",
        "aria-label": "Search",
        value: text,
        oninput: (e) => {
          text = e.target.value;
          search();
        },
        onkeydown: (e) => {
          if (e.key === "ArrowDown") chosen = Math.min(chosen + 1, found.length - 1);
          else if (e.key === "ArrowUp") chosen = Math.max(chosen - 1, 0);
          else if (e.key === "Enter" && found[chosen]) return choose(found[chosen]);
          else return;
          e.preventDefault();
          draw();
        },
      }),
      h(
        "ul",
        { role: "listbox", "aria-label": "What was found", tabindex: 0 },
        found.map((item, i) =>
          h(
            "li",
            { role: "option", "aria-selected": String(i === chosen), onclick: () => choose(item) },
            h("span", {}, item.name),
            h("small", { class: "quiet" }, item.kind),
          ),
        ),
      ),
    ]);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (e) => e.target === dialog && close());
  document.body.append(dialog);
  draw();
  dialog.showModal();
  search();
}
