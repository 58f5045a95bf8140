"use strict";
// Line charts as SVG, without a library, to keep pages small.

const page = JSON.parse(document.getElementById("data").textContent);

function el(name, attributes = {}, ...children) {
  const drawn = ["svg", "g", "path", "line", "text", "rect", "clipPath", "title"].includes(name);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const count = (n) => Number(n).toLocaleString("en");
const fixed = (x, digits = 3) => (Number.isFinite(x) ? x.toFixed(digits).replace(/^-/, "−") : "–");

function scale(axis, from, to) {
  // "log1" is log(1 + x), for distances, which start at 0
  const f = { log: Math.log, log1: Math.log1p }[axis.scale] || ((x) => x);
  const [low, high] = [f(axis.domain[0]), f(axis.domain[1])];
  return (x) => from + ((f(x) - low) / (high - low || 1)) * (to - from);
}

function niceTicks(low, high, target) {
  const raw = (high - low) / Math.max(1, target) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step || 0); // not −0
  return { ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function powerTicks([low, high], target, zero) {
  const ticks = [];
  for (let x = 1; x <= high; x *= 2) if (x >= low) ticks.push(x);
  const every = Math.max(1, Math.ceil(ticks.length / target));
  const kept = ticks.filter((_, i) => i % every === 0);
  return zero ? [0, ...kept] : kept;
}

const SHAPES = [
  (x, y) => `M${x - 4.5},${y}a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0Z`,
  (x, y) => `M${x - 4},${y - 4}h8v8h-8Z`,
  (x, y) => `M${x},${y - 5}l5,9h-10Z`,
  (x, y) => `M${x},${y - 5.5}l5.5,5.5l-5.5,5.5l-5.5,-5.5Z`,
  (x, y) => `M${x},${y + 5}l5,-9h-10Z`,
  (x, y) => `M${x - 1.7},${y - 5}h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3Z`,
];

const LINE = 14, END_SHARE = 0.35;
const pen = el("canvas").getContext("2d");

// Labels of the curves that reach the right end, top to bottom, and their width; none if they do not fit.
function endLabels(s, chart, height) {
  const none = { names: [], wide: 0 };
  if (!s.ends || chart.clientWidth < 480) return none;
  const known = s.series.map(({ label, cls, points }) => {
    const [x, value] = points.filter((p) => Number.isFinite(p[1])).at(-1) || [-Infinity];
    return { x, value, cls, text: label };
  });
  const right = Math.max(...known.map((one) => one.x));
  const names = known.filter((one) => one.x === right && Number.isFinite(right)).sort((a, b) => b.value - a.value);
  pen.font = `600 12px ${getComputedStyle(chart).fontFamily}`; // as in page.css
  const wide = Math.max(0, ...names.map((name) => pen.measureText(name.text).width));
  return names.length * LINE <= height && wide <= END_SHARE * chart.clientWidth ? { names, wide } : none;
}

// Moves ascending places up and down equally, within [low, high], until they are at least `gap` apart.
function spreadApart(places, gap, low, high) {
  const up = (all) => all.reduce((moved, place) => [...moved, Math.max(place, (moved.at(-1) ?? -Infinity) + gap)], []);
  const down = (all) => up(all.map((place) => -place).reverse()).map((place) => -place).reverse();
  const above = up(places), below = down(places);
  return down(up(places.map((_, i) => Math.max(low, (above[i] + below[i]) / 2))).map((place) => Math.min(high, place)));
}

let charts = 0;

// spec(): {alt, height, x: {scale, domain, label, ticks, name}, y: {domain, label}, marks: [{x, text}], nearest, ends,
//          series: [{label, cls, strong, faint, marker, points: [[x, y, low, high, note], …]}]}
// The tooltip shows the values of all series at the pointer or, with `nearest`, of the nearest curve.
// With `ends`, curves are labelled at their right ends if there is room.
function lineChart(box, spec) {
  const chart = el("div", { class: "chart" });
  const tip = el("div", { class: "tip", role: "status" });
  const clip = `clip${charts++}`;
  tip.hidden = true;
  box.append(chart);
  let state = null;

  function draw() {
    const s = spec();
    const width = chart.clientWidth, height = s.height || 340;
    if (!width) return;
    const { names, wide } = endLabels(s, chart, height - 70);
    const m = { left: 50, right: 14 + Math.ceil(wide), top: s.marks?.length ? 26 : 14, bottom: s.x.label ? 44 : 26 };
    const x = scale(s.x, m.left, width - m.right), y = scale(s.y, height - m.bottom, m.top);
    const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": s.alt, tabindex: 0 });
    const inside = { x: m.left, y: m.top, width: Math.max(1, width - m.left - m.right), height: height - m.top - m.bottom };
    svg.append(el("clipPath", { id: clip }, el("rect", inside)));

    const { ticks, digits } = niceTicks(...s.y.domain, height / 50);
    for (const t of ticks) {
      svg.append(el("line", { class: "grid", x1: m.left, x2: width - m.right, y1: y(t), y2: y(t) }));
      svg.append(el("text", { x: m.left - 7, y: y(t) + 4, "text-anchor": "end" }, fixed(t, digits)));
    }
    const target = inside.width / 52;
    const xTicks = s.x.ticks || (s.x.scale ? powerTicks(s.x.domain, target, s.x.scale === "log1")
      : niceTicks(...s.x.domain, Math.min(8, target)).ticks);
    let last = -Infinity;
    for (const t of xTicks) {
      const text = count(t), half = text.length * 3.6;
      if (x(t) - half < last + 6) continue;
      last = x(t) + half;
      const at = Math.min(x(t), width - half);
      svg.append(el("text", { x: at, y: height - m.bottom + 17, "text-anchor": "middle" }, text));
    }
    if (s.x.label) {
      const middle = m.left + inside.width / 2;
      svg.append(el("text", { x: middle, y: height - 7, "text-anchor": "middle" }, s.x.label));
    }
    for (const mark of s.marks || []) {
      const at = x(mark.x);
      if (!(at >= m.left - 1 && at <= width - m.right + 1)) continue;
      svg.append(el("line", { class: "mark", x1: at, x2: at, y1: m.top, y2: height - m.bottom }));
      const side = at > width * 0.8 ? "end" : at < width * 0.3 ? "start" : "middle";
      const place = { x: at, y: m.top - 8, "text-anchor": side };
      svg.append(el("text", place, mark.text));
    }

    const body = el("g", { "clip-path": `url(#${clip})` });
    const order = [...s.series].sort((a, b) => Boolean(a.strong) - Boolean(b.strong));
    for (const one of order) {
      const known = one.points.filter((p) => Number.isFinite(p[1]));
      if (!known.length) continue;
      const at = (p, v) => `${x(p[0]).toFixed(1)},${y(v).toFixed(1)}`;
      if (known.some((p) => p[3] > p[2])) {
        const over = known.map((p) => at(p, p[3] ?? p[1])), under = known.map((p) => at(p, p[2] ?? p[1])).reverse();
        body.append(el("path", { class: `band ${one.cls}`, d: `M${[...over, ...under].join("L")}Z` }));
      }
      const look = `curve ${one.cls}${one.strong ? " strong" : ""}${one.faint ? " faint" : ""}`;
      const d = `M${known.map((p) => at(p, p[1])).join("L")}${known.length === 1 ? "h.01" : ""}`;
      body.append(el("path", { class: look, "data-label": one.label, d }));
      if (one.marker !== undefined)
        for (const p of known)
          body.append(el("path", { class: `dot ${one.cls}`, d: SHAPES[one.marker % SHAPES.length](x(p[0]), y(p[1])) }));
    }
    spreadApart(names.map((name) => y(name.value)), LINE, m.top, height - m.bottom).forEach((at, i) => {
      const { text, cls } = names[i];
      svg.append(el("text", { class: `end ${cls}`, x: width - m.right + 12, y: at + 4 }, text));
    });
    const guide = el("g");
    svg.append(body, guide);
    chart.replaceChildren(svg, tip);
    tip.hidden = true;
    state = { s, x, y, width, height, m, guide };
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      point(event.clientX - frame.left, event.clientY - frame.top);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", step);
  }

  function hide() {
    tip.hidden = true;
    state?.guide.replaceChildren();
  }

  function places() {
    return [...new Set(state.s.series.flatMap((one) => one.points.map((p) => p[0])))].sort((a, b) => a - b);
  }

  function point(px, py) {
    const { s, x, y } = state;
    let best = null;
    for (const one of s.series)
      for (const p of one.points) {
        if (!Number.isFinite(p[1])) continue;
        const far = s.nearest ? Math.hypot(x(p[0]) - px, y(p[1]) - py) : Math.abs(x(p[0]) - px);
        if (!best || far < best.far) best = { far, at: p[0], one };
      }
    if (best) show(best.at, s.nearest ? [best.one] : s.series);
  }

  function show(at, series) {
    const { s, x, y, width, height, m, guide } = state;
    const rows = series.map((one) => ({ one, p: one.points.find((p) => p[0] === at) }))
      .filter((row) => row.p && Number.isFinite(row.p[1])).sort((a, b) => b.p[1] - a.p[1]);
    if (!rows.length) return hide();
    state.at = at;
    const lines = rows.map(({ one, p }) =>
      el("div", {}, el("span", { class: `swatch ${one.cls}` }), `${one.label}  ${p[4] ?? fixed(p[1])}`));
    tip.replaceChildren(el("b", {}, s.x.name(at)), ...lines);
    tip.hidden = false;
    const left = x(at) + 12 + tip.offsetWidth > width ? x(at) - 12 - tip.offsetWidth : x(at) + 12;
    tip.style.left = `${Math.max(0, Math.min(left, width - tip.offsetWidth))}px`;
    tip.style.top = `${m.top + 4}px`;
    guide.replaceChildren(
      el("line", { class: "guide", x1: x(at), x2: x(at), y1: m.top, y2: height - m.bottom }),
      ...(s.nearest ? rows.map(({ one, p }) => el("path", { class: `dot ${one.cls}`, d: SHAPES[0](x(at), y(p[1])) })) : []));
  }

  function step(event) {
    if (event.key === "Escape") return hide();
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const all = places(), now = tip.hidden ? (by > 0 ? -1 : all.length) : all.indexOf(state.at);
    show(all[Math.max(0, Math.min(all.length - 1, now + by))], state.s.series);
  }

  let before = 0;
  new ResizeObserver(() => {
    if (chart.clientWidth === before) return;
    before = chart.clientWidth;
    draw();
  }).observe(chart);
  before = chart.clientWidth;
  draw();
  return draw;
}

function range(values, margin = 0.05) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return [0, 1];
  const low = Math.min(...known), high = Math.max(...known), room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}

// Buttons that show and hide a series in every chart of the page.
function legend(box, series, hidden, redraw) {
  if (series.length < 2) return () => {};
  const buttons = series.map((one) => {
    const button = el("button", { type: "button" }, el("span", { class: `swatch ${one.cls}` }), one.label);
    button.addEventListener("click", () => {
      if (!hidden.delete(one.label)) hidden.add(one.label);
      redraw();
    });
    return button;
  });
  box.append(el("div", { class: "legend", role: "group", "aria-label": "Show or hide" }, ...buttons));
  return () => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(!hidden.has(series[i].label))));
}

function choice(name, options, chosen, onchange) {
  const inputs = options.map(([value, text]) => {
    const input = el("input", { type: "radio", name, value });
    input.checked = value === chosen;
    input.addEventListener("change", () => onchange(value));
    return el("label", {}, input, ` ${text}`);
  });
  return el("fieldset", {}, el("legend", {}, name), ...inputs);
}
