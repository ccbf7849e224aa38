// What was and what is, line by line.

import { h } from "./view.js";

const MOST = 1000; // lines that are compared; of longer texts all go and come
const NEAR = 2; // lines that are shown around a change

export function difference(before, after) {
  const lines = compare(before.split("\n"), after.split("\n"));
  const near = lines.map((_, i) => lines.slice(Math.max(0, i - NEAR), i + NEAR + 1).some(([sign]) => sign !== " "));
  return h(
    "pre",
    { class: "data diff" },
    lines.map(([sign, text], i) =>
      near[i]
        ? h("div", { class: { "+": "plus", "-": "minus" }[sign] || "same" }, `${sign} ${text}`)
        : near[i - 1] && h("div", { class: "quiet" }, "…"),
    ),
  );
}

/** [sign, line] of the shortest way from a to b. */
function compare(a, b) {
  if (a.length > MOST || b.length > MOST) return [...a.map((l) => ["-", l]), ...b.map((l) => ["+", l])];
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const found = [];
  let i = 0,
    j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) found.push([" ", a[i++], j++]);
    else if (j === b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) found.push(["-", a[i++]]);
    else found.push(["+", b[j++]]);
  }
  return found;
}
