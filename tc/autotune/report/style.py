"""How the tuning report looks: one style sheet, light and dark, wide and narrow.

The colours of plots are those of Okabe and Ito, which people with any common colour blindness tell apart; the dark style takes lighter
ones of the same hues.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f6f7f9; --line: #dfe3e8; --ink: #1b1f24; --muted: #626b76; --grid: #e8ebef;
  --first: #0072b2; --second: #e69f00; --good: #00805c; --bad: #d55e00; --mark: #dcecf8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --panel: #1d2127; --line: #353c45; --ink: #e6e9ed; --muted: #9aa4b0; --grid: #2a3038;
    --first: #56b4e9; --second: #e6a83c; --good: #2fc29a; --bad: #ff8a4c; --mark: #1d3e55;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1360px; margin: 0 auto; padding: 24px clamp(14px, 3vw, 40px) 48px; }
h1 { font-size: clamp(24px, 3.2vw, 34px); line-height: 1.2; margin: 8px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 22px; margin: 44px 0 10px; padding-bottom: 6px; border-bottom: 1px solid var(--line); }
h3 { font-size: 16px; margin: 0 0 6px; overflow-wrap: anywhere; }
h4 { font-size: 14px; margin: 0 0 4px; color: var(--muted); }
p { margin: 0 0 12px; max-width: 90ch; overflow-wrap: anywhere; }
.where, .note, figcaption, footer, small { color: var(--muted); }
.note, figcaption, footer { font-size: 14px; }
footer { margin-top: 48px; }

.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; margin: 18px 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px;
  display: flex; flex-direction: column; }
.card:first-child { grid-column: span 2; }
.card .title { font-size: 14px; color: var(--muted); }
.card .value { font-size: 25px; font-weight: 650; line-height: 1.35; font-variant-numeric: tabular-nums; }

.wide { overflow-x: auto; margin: 0 0 16px; }
table { border-collapse: collapse; font-size: 14px; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line); }
thead th { color: var(--muted); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; overflow-wrap: anywhere; min-width: 11em; max-width: 24em; }
td.n, th.n { text-align: right; white-space: nowrap; padding-right: 16px; }
thead th.n { white-space: normal; }
td.strong { color: var(--good); font-weight: 650; }
td small, th small { display: block; font-size: 12px; font-weight: 400; line-height: 1.35; }
td.reason { color: var(--muted); font-size: 13px; min-width: 14em; }
table.knobs { width: auto; min-width: min(100%, 30em); }
table.knobs td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 13px; padding-right: 28px; }
.failures td { overflow-wrap: anywhere; }
.failures td:last-child { width: 70%; }
.track { display: block; background: var(--grid); border-radius: 3px; overflow: hidden; }
td .track { height: 4px; margin-top: 4px; min-width: 56px; }
.bar { display: block; height: 100%; background: var(--first); }

figure { margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px 12px; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
.large { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 16px; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); gap: 14px; }
.key { font-size: 13px; margin: 6px 0; display: flex; flex-wrap: wrap; gap: 2px 16px; color: var(--ink); }
.key i { display: inline-block; width: 14px; height: 4px; border-radius: 2px; margin-right: 6px; vertical-align: middle; }

.bars { display: grid; grid-template-columns: fit-content(45%) 1fr auto; gap: 6px 12px; align-items: center;
  max-width: 900px; font-size: 14px; }
.bars .name { overflow-wrap: anywhere; }
.bars .track { height: 14px; }
.bars .part { text-align: right; font-variant-numeric: tabular-nums; }

details { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 10px 16px; margin: 0 0 10px; }
details.inner { margin: 12px 0 4px; background: var(--page); }
summary { cursor: pointer; overflow-wrap: anywhere; }
details[open] > summary { margin-bottom: 10px; }
.problem { color: var(--bad); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 14px; }
.nest { min-width: 0; }
pre { margin: 0; padding: 12px 14px; background: var(--page); border: 1px solid var(--line); border-radius: 8px;
  overflow: auto; max-height: 75vh;
  font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
mark { background: var(--mark); color: inherit; border-radius: 3px; padding: 0 2px; font-weight: 600; }

@media (max-width: 700px) {
  tbody th { position: sticky; left: 0; background: var(--page); min-width: 8em; max-width: 11em; padding-left: 0; }
  tbody th small { display: none; }
  .failures tbody th { position: static; }
  .failures tbody th small { display: block; }
  .failures td { min-width: 16em; }
  td.n, th.n { padding-right: 12px; }
  .card .value { font-size: 21px; }
  .large svg text { font-size: 11.5px !important; }
  details { padding: 10px 12px; }
  pre { font-size: 11px; max-height: 60vh; }
}
@media print { pre { max-height: none; } figure, details { break-inside: avoid; } }
"""
