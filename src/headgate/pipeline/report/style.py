"""The style of a report's page."""

from __future__ import annotations

from .charts import COLORS

STYLE = """
:root { color-scheme: light dark; --ink: #172033; --dim: #5a6579; --paper: #f4f6f9; --card: #fff; --rule: #e1e6ee;
  --c0: #2f6fde; --c1: #e0782f; --c2: #2a9d6f; --c3: #b04fc4; --c4: #b98f0a; --c5: #d3455b; --c6: #2796b5;
  --c7: #8a93a3 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf2; --dim: #9aa5b8; --paper: #0f131a; --card: #181e28;
  --rule: #2a323f; --c0: #6c9dff; --c1: #ff9d57; --c2: #4fd09b; --c3: #d585e6; --c4: #e6c34a; --c5: #ff7c8f;
  --c6: #63cbe8; --c7: #a4adbc } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1560px;
  margin: 0 auto; padding: 1.5rem clamp(.8rem, 3vw, 2.5rem) 3rem }
h1 { font-size: 1.6rem; margin: 0; line-height: 1.2 } h2 { margin: 2.5rem 0 .8rem; font-size: 1.25rem }
h2 small { font-weight: 400; color: var(--dim); font-size: .9rem; margin-left: .6rem }
h3 { margin: 0 0 .2rem; font-size: .95rem } .dim { color: var(--dim) } p { margin: .2rem 0 } a { color: inherit }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: .7rem; margin: 1rem 0 }
.tiles div, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: .7rem 1rem }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.25 } .tiles div { color: var(--dim); font-size: .85rem }
.tiles b { color: var(--ink); white-space: nowrap } .tiles small { display: block; font-size: .75rem }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: .9rem }
.cards > .wide, .card.wide { grid-column: 1 / -1 } .card { min-width: 0; margin-bottom: .9rem }
.cards .card { margin: 0 } .cards + .card { margin-top: .9rem }
.plot { container-type: inline-size; position: relative; height: 13rem;
  padding: .6rem 0 1.6rem 4.2rem; margin-top: .3rem }
.plot svg { width: 100%; height: 100%; display: block; overflow: visible }
.y, .x { position: absolute; font-size: .75rem; color: var(--dim); font-variant-numeric: tabular-nums }
.y { left: 0; width: 3.8rem; top: .6rem; bottom: 1.6rem }
.y span { position: absolute; right: 0; transform: translateY(50%); white-space: nowrap }
.x { left: 4.2rem; right: 0; bottom: 0; height: 1.3rem }
.x span { position: absolute; transform: translateX(-50%); white-space: nowrap }
.grid line { stroke: var(--rule); vector-effect: non-scaling-stroke } .tip { fill: transparent }
.tip:hover { fill: var(--dim); fill-opacity: .12 }
polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round;
  vector-effect: non-scaling-stroke }
.spark { width: 7rem; height: 1.5rem; display: block; fill: var(--c0) }
.share { display: block; height: 4px; border-radius: 2px; background: var(--rule); margin-top: 2px; min-width: 4rem }
.share i { display: block; height: 100%; border-radius: 2px; background: var(--c0) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .87rem }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--rule); white-space: nowrap }
tbody tr:last-child td { border-bottom: 0 } th { color: var(--dim); font-weight: 500; vertical-align: bottom }
th.t, td.t { text-align: left } td.long { white-space: normal; overflow-wrap: anywhere; min-width: 14rem }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--card); padding-left: 0 }
.bad { color: var(--c5); font-weight: 600 }
.legend { font-size: .8rem; color: var(--dim) } .legend span { margin-right: 1rem; white-space: nowrap }
.legend i { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin-right: .35em }
details { margin-top: .9rem } summary { cursor: pointer; color: var(--dim); font-size: .9rem }
footer { color: var(--dim); font-size: .85rem; margin-top: 2.5rem; max-width: 60rem }
@container (max-width: 40rem) { .odd { display: none } }
@media (max-width: 40rem) { .plot { height: 11rem; padding-left: 3.4rem } .x { left: 3.4rem }
  .y { width: 3.1rem } .card, .tiles div { padding: .6rem .7rem } .tiles b { font-size: 1.15rem }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(6rem, 1fr)) } }
@media print { body { background: #fff } .card { break-inside: avoid } }
""" + "".join(
    f".c{n} {{ fill: var(--c{n}) }} .l{n} {{ stroke: var(--c{n}) }} .b{n} {{ background: var(--c{n}) }}\n"
    for n in range(COLORS)
)
