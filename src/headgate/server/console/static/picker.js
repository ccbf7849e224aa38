// Choosing a stream or a consumer among any number of them: what is typed is searched for.

import { h } from "./view.js";
import { get } from "./api.js";

let number = 0;

/** A field that suggests names as the API finds them. `found(overview)` are the names, `choose(name)` takes one. */
export function picker(state, { label, value, found, choose, query = {}, placeholder = "type to search" }) {
  const slot = (state.pickers ??= {});
  const mine = (slot[label] ??= { id: `names${++number}`, names: [], asked: 0, text: null });
  const list = () => document.getElementById(mine.id);
  const suggest = async (text) => {
    const asked = ++mine.asked;
    const answer = await get("api/overview", { search: text, limit: 50, sort: "name", ...query }).catch(() => null);
    if (!answer || asked !== mine.asked) return;
    mine.names = found(answer);
    list()?.replaceChildren(...mine.names.map((name) => Object.assign(document.createElement("option"), { value: name })));
  };
  return h(
    "label",
    {},
    label,
    h("input", {
      type: "search",
      list: mine.id,
      autocomplete: "off",
      spellcheck: "false",
      placeholder,
      value: value || "",
      onfocus: (e) => suggest(e.target.value === value ? "" : e.target.value),
      oninput: (e) => {
        if (mine.names.includes(e.target.value)) choose(e.target.value);
        else suggest(e.target.value);
      },
      onchange: (e) => e.target.value.trim() !== (value || "") && choose(e.target.value.trim()),
    }),
    h("datalist", { id: mine.id, opaque: true }),
  );
}
