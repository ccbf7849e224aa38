// Jump to anything by its name, or do something: the keyboard's way to everything.

import { h, patch } from "./view.js";
import { get, post, consumerPath, isAdmin, may, session } from "./api.js";
import { toStream, toConsumer, toMessage, ask, note } from "./ui.js";
import { settings, remember } from "./settings.js";
import { NAVIGATION, logout } from "./frame.js";
import { send } from "./pages/stream_actions.js";

const go = (to) => () => {
  location.hash = to;
};

const PAGES = () =>
  NAVIGATION.filter(([, , , allowed]) => !allowed || allowed()).map(([to, name]) => ({ kind: "page", name, act: go(to) }));

const set = (name, change) => ({
  kind: "do",
  name,
  act: () => {
    remember(change);
    dispatchEvent(new Event("storage")); // as another tab would tell
  },
});

const COMMANDS = () => [
  set(settings.isLive ? "Stop the live updates" : "Start the live updates", { isLive: !settings.isLive }),
  ...["local", "UTC", "relative"].filter((t) => t !== settings.time).map((t) => set(`Times: ${t}`, { time: t })),
  ...["system", "light", "dark"].filter((t) => t !== settings.theme).map((t) => set(`Colours: ${t}`, { theme: t })),
  ...(session.me?.auth ? [{ kind: "do", name: "Log out", act: logout }] : []),
];

/** What can be done to what was found. (The listing may be some seconds old: who says resume is believed.) */
function doings({ streams, consumers }, text) {
  const found = [];
  const [said] = /^(pause|resume)/i.exec(text) || [];
  if (may("produce"))
    for (const s of streams.slice(0, 3)) found.push({ kind: "do", name: `Send to ${s.name}`, act: () => send(s.name) });
  if (isAdmin())
    for (const { consumer: c } of consumers.slice(0, 3))
      found.push(turning(c, said ? said.toLowerCase() === "resume" : c.paused));
  return found;
}

function turning(c, isResume) {
  const word = isResume ? "Resume" : "Pause";
  return {
    kind: "do",
    name: `${word} ${c.stream} / ${c.name}`,
    act: () =>
      ask({
        title: `${word} ${c.name} of ${c.stream}?`,
        action: word,
        body: () => h("p", {}, isResume ? "It is handed messages again." : "It is handed nothing until it is resumed."),
        act: async () => {
          await post(consumerPath(c.stream, c.name, word.toLowerCase()));
          note(isResume ? `${c.name} goes on.` : `${c.name} is paused.`);
        },
      }),
  };
}

/** "orders 42": a message. */
function messageOf(text) {
  const [, stream, seq] = /^(\S+)[ #/](\d{1,18})$/.exec(text.trim()) || [];
  return stream ? [{ kind: "message", name: `${seq} of ${stream}`, act: go(toMessage(stream, seq)) }] : [];
}

export function openPalette() {
  if (document.querySelector("dialog")) return;
  const dialog = document.createElement("dialog");
  dialog.className = "palette";
  dialog.setAttribute("aria-label", "Jump");
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
    item.act();
  };
  const fits = ({ name }) =>
    text
      .toLowerCase()
      .split(/\s+/)
      .every((word) => name.toLowerCase().includes(word));
  const search = async () => {
    const mine = ++asked;
    const own = [...PAGES(), ...COMMANDS()].filter(fits);
    found = [...messageOf(text), ...own];
    chosen = 0;
    draw();
    try {
      const verb = /^(pause|resume|send to|send)\s+/i;
      const all = await get("api/overview", { search: text.replace(verb, "").trim(), limit: 8, sort: "name" });
      if (mine !== asked) return;
      const isDoing = verb.test(text);
      const named = [
        ...all.streams.map((s) => ({ kind: "stream", name: s.name, act: go(toStream(s.name)) })),
        ...all.consumers.map(({ consumer: c }) => ({
          kind: "consumer",
          name: `${c.stream} / ${c.name}`,
          act: go(toConsumer(c.stream, c.name)),
        })),
      ];
      const doing = text ? doings(all, text).filter((item) => !isDoing || fits(item)) : [];
      found = [...messageOf(text), ...(isDoing ? doing : named), ...own, ...(isDoing ? named : doing)];
      chosen = Math.min(chosen, Math.max(0, found.length - 1));
      draw();
    } catch {
      // the pages are there anyway
    }
  };
  const draw = () =>
    patch(dialog, [
      h("input", {
        type: "search",
        placeholder: "A stream, a consumer, a page, “orders 42”, “pause billing”",
        role: "combobox",
        "aria-label": "Search",
        "aria-expanded": "true",
        "aria-controls": "found",
        "aria-activedescendant": found.length ? `found${chosen}` : null,
        value: text,
        oninput: (e) => {
          text = e.target.value;
          search();
        },
        onkeydown: (e) => {
          if (e.key === "ArrowDown") chosen = Math.min(chosen + 1, found.length - 1);
          else if (e.key === "ArrowUp") chosen = Math.max(chosen - 1, 0);
          else if (e.key === "Enter" && found[chosen]) {
            e.preventDefault();
            return choose(found[chosen]);
          } else return;
          e.preventDefault();
          draw();
          document.getElementById(`found${chosen}`)?.scrollIntoView({ block: "nearest" });
        },
      }),
      h(
        "ul",
        { id: "found", role: "listbox", "aria-label": "What was found", tabindex: 0 },
        found.map((item, i) =>
          h(
            "li",
            { id: `found${i}`, role: "option", "aria-selected": String(i === chosen), onclick: () => choose(item) },
            h("span", {}, item.name),
            h("small", { class: "quiet" }, item.kind),
          ),
        ),
      ),
      !found.length && h("p", { class: "quiet empty" }, "Nothing is called that."),
    ]);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (e) => e.target === dialog && close());
  document.body.append(dialog);
  draw();
  dialog.showModal();
  search();
}
