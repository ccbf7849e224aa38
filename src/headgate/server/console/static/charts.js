// Charts as SVG: a sparkline, and lines over time. No colours here: the style sheet has them.

import { h } from "./view.js";
import { moment } from "./format.js";

/** The last values as a small line. */
export function sparkline(values, label = "") {
  const points = values.filter((v) => v != null);
  if (points.length < 2) return h("svg", { class: "spark", viewBox: "0 0 80 20", "aria-hidden": "true" });
  const top = Math.max(...points, 0.001);
  const step = 80 / (points.length - 1);
  const line = points.map((v, i) => `${(i * step).toFixed(1)},${(18.5 - (v / top) * 17).toFixed(1)}`).join(" ");
  return h(
    "svg",
    { class: "spark", viewBox: "0 0 80 20", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("polygon", { points: `0,20 ${line} 80,20`, class: "area" }),
    h("polyline", { points: line }),
  );
}

/** lines: [{name, values: [[ms, number|null], …]}]. `show` turns a number into text. */
export function chart({ title, lines, show, from, to, hover, onhover, note }) {
  const W = 600,
    H = 150,
    LEFT = 46,
    BOTTOM = 18,
    TOP = 8;
  const all = lines.flatMap((l) => l.values.map((v) => v[1])).filter((v) => v != null);
  const top = nice(Math.max(...all, 0)) || 1;
  const x = (at) => LEFT + ((at - from) / (to - from || 1)) * (W - LEFT - 6);
  const y = (v) => TOP + (1 - v / top) * (H - TOP - BOTTOM);
  const times = lines[0]?.values.map((v) => v[0]) || [];
  const near =
    hover != null && times.length
      ? times.reduce((a, b) => (Math.abs(b - hover) < Math.abs(a - hover) ? b : a))
      : null;
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * W;
    onhover?.(from + ((px - LEFT) / (W - LEFT - 6)) * (to - from));
  };
  return h(
    "figure",
    { class: "chart" },
    h(
      "figcaption",
      {},
      h("b", {}, title),
      lines.length > 1 || near != null
        ? h(
            "span",
            { class: "legend" },
            lines.map((l, i) =>
              h("span", { class: `key k${i}` }, l.name + (near != null ? " " + show(valueAt(l, near)) : "")),
            ),
          )
        : h("span", { class: "legend" }, all.length ? "now " + show(lines[0].values.at(-1)?.[1]) : ""),
    ),
    all.length < 2
      ? h("p", { class: "quiet empty" }, note || "Not enough samples yet: there is one each ten seconds or so.")
      : h(
          "svg",
          {
            viewBox: `0 0 ${W} ${H}`,
            role: "img",
            "aria-label": title,
            onmousemove: move,
            onmouseleave: () => onhover?.(null),
          },
          [0, 0.5, 1].map((part) => [
            h("line", { class: "grid", x1: LEFT, x2: W - 6, y1: y(top * part), y2: y(top * part) }),
            h("text", { class: "tick", x: LEFT - 6, y: y(top * part) + 3, "text-anchor": "end" }, show(top * part)),
          ]),
          [0, 0.5, 1].map((part) =>
            h(
              "text",
              {
                class: "tick",
                x: LEFT + part * (W - LEFT - 6),
                y: H - 4,
                "text-anchor": ["start", "middle", "end"][part * 2],
              },
              clock(from + part * (to - from), to - from),
            ),
          ),
          lines.map((l, i) =>
            pieces(l.values).map((piece) =>
              h("polyline", {
                class: `line k${i}`,
                points: piece.map(([at, v]) => `${x(at).toFixed(1)},${y(v).toFixed(1)}`).join(" "),
              }),
            ),
          ),
          near != null && h("line", { class: "cursor", x1: x(near), x2: x(near), y1: TOP, y2: H - BOTTOM }),
        ),
    near != null && h("p", { class: "quiet at" }, moment(new Date(near).toISOString())),
  );
}

const valueAt = (line, at) => line.values.find((v) => v[0] === at)?.[1];

/** Parts of a line between gaps. */
function pieces(values) {
  const found = [[]];
  const steps = values
    .slice(1)
    .map((v, i) => v[0] - values[i][0])
    .sort((a, b) => a - b);
  const gap = (steps[Math.floor(steps.length / 2)] || 0) * 4;
  values.forEach(([at, v], i) => {
    if (v == null || (i && gap && at - values[i - 1][0] > gap)) found.push([]);
    if (v != null) found.at(-1).push([at, v]);
  });
  return found.filter((p) => p.length > 1);
}

function nice(n) {
  if (n <= 0) return 0;
  const size = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 2.5, 5, 10].map((f) => f * size).find((v) => v >= n);
}

function clock(at, span) {
  const d = new Date(at);
  const two = (n) => String(n).padStart(2, "0");
  return span > 36 * 3600e3
    ? `${d.getMonth() + 1}-${two(d.getDate())}`
    : `${two(d.getHours())}:${two(d.getMinutes())}`;
}
