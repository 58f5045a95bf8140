// Learned biases of one or two checkpoints. FIRE is evaluated here from its weights; other encodings are sampled.

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x, sum = x; // the Taylor series, with terms that stay positive
  for (let n = 1; n < 200 && Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

const ACTIVATIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  step: (x) => (x >= 0 ? 1 : 0),
  cos: Math.cos,
};

// b(i, j) = f( ψ(i − j) / ψ(min{max{L, i}, horizon}) ) for each head, at distances from a query (counted from 1)
function fire(layer) {
  const mlp = layer.mlp.map((one) => ({ ...one, weight: floats(one.weight), bias: floats(one.bias) }));
  const psi = (x) => (layer.log ? Math.log(Math.abs(layer.c * x) + 1) : x);
  const f = (x) => mlp.reduce((inputs, one) => {
    const act = ACTIVATIONS[one.activation] || ((v) => v);
    return Float64Array.from(one.bias, (start, row) => {
      let sum = start;
      for (let k = 0; k < one.in; k++) sum += one.weight[row * one.in + k] * inputs[k];
      return act(sum);
    });
  }, [x]);
  return (query, distances) => {
    const position = query - 1 + layer.first;
    let normalizer = psi(Math.min(Math.max(layer.L ?? 0, position), layer.horizon ?? Infinity)) + layer.eps;
    if (layer.eps === 0) normalizer = Math.max(normalizer, 1e-6);
    const outputs = distances.map((distance) => f(psi(distance) / normalizer));
    return Array.from({ length: layer.heads }, (_, head) => outputs.map((values) => values[head]));
  };
}

// linear interpolation between the samples of the nearest sampled query
function sampled(layer) {
  const rows = layer.rows.map((row) => ({ ...row, values: floats(row.values) }));
  return (query, distances) => {
    const far = (row) => Math.abs(Math.log(row.query / query));
    const row = rows.length === 1 ? rows[0] : rows.reduce((a, b) => (far(b) < far(a) ? b : a));
    const n = row.at.length;
    return Array.from({ length: row.heads }, (_, head) => distances.map((distance) => {
      let low = 0, high = n - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (row.at[middle] <= distance) low = middle; else high = middle;
      }
      const share = high > low ? Math.min(1, (distance - row.at[low]) / (row.at[high] - row.at[low])) : 0;
      return row.values[head * n + low] * (1 - share) + row.values[head * n + high] * share;
    }));
  };
}

for (const model of page.models)
  for (const layer of model.layers) layer.bias = (layer.kind === "fire" ? fire : sampled)(layer);

// dense near the query, sparse far away, plus evenly spaced ones to draw over key positions
function sampleDistances(query) {
  const all = new Set([0, query - 1]);
  for (let d = 0; d < Math.min(query, 24); d++) all.add(d);
  for (let k = 0; k <= 72; k++) all.add(Math.round(query ** (k / 72)) - 1);
  for (let k = 0; k <= 36; k++) all.add(Math.round(((query - 1) * k) / 36));
  return [...all].filter((d) => d >= 0 && d < query).sort((a, b) => a - b);
}

// the mean distance under the softmax of the bias, relative to uniform attention
function lookBack(values, distances) {
  const n = distances.length;
  if (n < 2) return 1;
  const top = Math.max(...values);
  let total = 0, sum = 0;
  for (let i = 0; i < n; i++) {
    const before = i ? (distances[i] - distances[i - 1]) / 2 : 0.5;
    const after = i < n - 1 ? (distances[i + 1] - distances[i]) / 2 : 0.5;
    const weight = Math.exp(values[i] - top) * (before + after);
    total += weight;
    sum += weight * distances[i];
  }
  return sum / total / (distances[n - 1] / 2);
}

const kindOf = (ratio) => (ratio < page.local ? "local" : ratio > page.antiLocal ? "anti" : "even");
const KINDS = { local: "local", anti: "anti-local", even: "even" };
const FLOOR = -10; // a key this far below the maximum gets e^−10 of the weight: practically no attention

const trained = Math.max(...page.models.map((model) => model.trained));
const state = { query: trained, by: "distance", relative: true, pinned: null, scheduled: false };
const two = page.models.length > 1;
const box = (id) => document.getElementById(id);

function curves(layer, query) {
  const distances = sampleDistances(query), heads = layer.bias(query, distances);
  return heads.map((values) => {
    const top = Math.max(...values), ratio = lookBack(values, distances);
    return { distances, values: state.relative ? values.map((v) => v - top) : values, ratio, kind: kindOf(ratio) };
  });
}

const domains = {};
function domain() {
  return (domains[state.relative] ??= (() => {
    const queries = [1, trained / 4, trained, 4 * trained, page.farthest].map((n) => Math.max(1, Math.round(n)));
    const values = page.models.flatMap((model) => model.layers.flatMap((layer) =>
      queries.flatMap((query) => curves(layer, query).flatMap((head) => range(head.values, 0)))));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return state.relative ? [Math.min(-0.5, Math.max(FLOOR, low * 1.05)), 0.04 * Math.max(0.5, Math.min(-FLOOR, -low))]
      : range([low, high]);
  })());
}

function scheduleDraw() {
  if (state.scheduled) return;
  state.scheduled = true;
  requestAnimationFrame(() => { state.scheduled = false; draw(); });
}

// the slider is logarithmic
const slider = el("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": "query position, logarithmic" });
const entry = el("input", { type: "number", min: 1, max: page.farthest, "aria-label": "query position" });
const times = el("span", { class: "soft", id: "times" });
const toSlider = (n) => Math.round((1000 * Math.log(n)) / Math.log(page.farthest));
slider.addEventListener("input", () => move(Math.round(page.farthest ** (slider.value / 1000)), slider));
entry.addEventListener("input", () => { if (entry.value >= 1) move(Math.round(Number(entry.value)), entry); });
entry.addEventListener("change", () => { entry.value = state.query; });

function move(query, from) {
  state.query = Math.max(1, Math.min(page.farthest, query));
  if (from !== slider) slider.value = toSlider(state.query);
  if (from !== entry) entry.value = state.query;
  slider.setAttribute("aria-valuetext", `position ${count(state.query)}`);
  scheduleDraw();
}

const jumps = [0.25, 1, 2, 4, page.farthest / trained].map((factor) => {
  const button = el("button", { type: "button" }, factor === 0.25 ? "¼ ×" : `${factor} ×`);
  button.addEventListener("click", () => move(Math.max(1, Math.round(factor * trained))));
  return button;
});
box("query").append(
  el("div", { class: "controls" }, el("label", {}, "query at position ", entry), times,
    el("span", { class: "legend" }, ...jumps)),
  slider);

const panels = [];
const map = box("heads"), maps = el("div", { class: "panels maps" });
const key = el("p", { class: "legend soft" }, ...Object.entries(KINDS).flatMap(([kind, text]) =>
  [el("span", {}, el("span", { class: `swatch ${kind}` }), text)]));
map.append(key, maps);

function title(model, i) {
  return model.perLayer ? `layer ${i + 1}` : "all layers";
}

for (const model of page.models) {
  const grid = el("div", { class: "grid-of-heads", role: "group", "aria-label": `heads of ${model.name}` });
  const cells = model.layers.map((layer, i) => {
    const row = el("div", { class: "row" }, el("span", { class: "soft" }, title(model, i)));
    const heads = layer.bias(1, [0]).map((_, head) => {
      const cell = el("button", { type: "button" }, String(head + 1));
      cell.addEventListener("click", () => {
        const same = state.pinned?.layer === layer && state.pinned.head === head;
        state.pinned = same ? null : { layer, head };
        scheduleDraw();
      });
      return cell;
    });
    row.append(el("span", { class: "cells" }, ...heads));
    grid.append(row);
    return heads;
  });
  maps.append(el("div", {}, ...(two ? [el("h3", {}, model.name)] : []), grid));
  model.cells = cells;
}

box("curves").append(el("div", { class: "controls" },
  choice("keys by", [["distance", "distance"], ["position", "position"]], state.by, (by) => { state.by = by; scheduleDraw(); }),
  choice("bias", [["relative", "relative to the head's maximum"], ["raw", "raw"]], "relative",
    (way) => { state.relative = way === "relative"; scheduleDraw(); })));
const all = el("div", { class: two ? "panels two" : "panels" });
box("curves").append(all);

const deepest = Math.max(...page.models.map((model) => model.layers.length));
for (let i = 0; i < deepest; i++)
  for (const model of page.models) {
    const layer = model.layers[i], panel = el("div", { class: "panel" });
    all.append(panel);
    if (!layer) continue;
    const learned = [["c", layer.c], ["L", layer.L], ["horizon", layer.horizon]].filter(([, x]) => x !== null);
    const about = learned.map(([name, x]) => `${name} = ${Number(x.toPrecision(3)).toLocaleString("en")}`).join(", ");
    panel.append(el("h3", {}, `${two ? `${model.name}, ` : ""}${title(model, i)} `, el("small", {}, about)));
    panels.push({ model, layer, i, now: null, panel, draw: null });
  }

function spec(one) {
  const { query, by, pinned } = state, here = pinned?.layer === one.layer;
  const series = one.now.map((head, h) => ({
    label: `head ${h + 1}, ${KINDS[head.kind]}`, cls: head.kind,
    strong: here && pinned.head === h, faint: here && pinned.head !== h,
    points: head.distances.map((d, k) => [by === "distance" ? d : query - d, head.values[k]]),
  }));
  return {
    alt: `Bias of each head in ${title(one.model, one.i)} of ${one.model.name}, for the query at ${query}.`,
    height: 200, nearest: true, series,
    x: by === "distance"
      ? { scale: "log1", domain: [0, Math.max(1, query - 1)], label: "distance", name: (n) => `distance ${count(n)}` }
      : { domain: [1, Math.max(2, query)], label: "key position", name: (n) => `key ${count(n)}` },
    y: { domain: domain() },
    marks: by === "distance" && query > one.model.trained ? [{ x: one.model.trained, text: "training length" }] : [],
  };
}

function draw() {
  const { query } = state;
  for (const one of panels) {
    one.now = curves(one.layer, query);
    one.model.cells[one.i].forEach((cell, h) => {
      const { ratio, kind } = one.now[h];
      const strength = Math.min(1, ratio > 1 ? ratio - 1 : (1 / Math.max(ratio, 0.1) - 1) / 3); // 1 at ratios of 2 and ¼
      cell.className = `${kind}${kind !== "even" && strength > 0.75 ? " full" : ""}`;
      cell.style.setProperty("--strength", `${kind === "even" ? 14 : Math.round(30 + 70 * strength)}%`);
      const far = count(Math.round((ratio * (query - 1)) / 2)), even = count(Math.round((query - 1) / 2));
      cell.title = `${title(one.model, one.i)}, head ${h + 1}: ${KINDS[kind]}. Looks back ${far} tokens on average; ${even} without a bias.`;
      cell.setAttribute("aria-label", cell.title);
      cell.setAttribute("aria-pressed", String(state.pinned?.layer === one.layer && state.pinned.head === h));
    });
    if (one.draw) one.draw(); else one.draw = lineChart(one.panel, () => spec(one));
  }
  const factor = query / trained;
  times.textContent = `${factor < 10 ? Number(factor.toPrecision(2)) : Math.round(factor)} × the training length`;
}

// for the console and tests
window.longfire = {
  bias: (model, layer, query, distances) => page.models[model].layers[layer].bias(query, distances),
  lookBack: (model, layer, query) => {
    const distances = sampleDistances(query);
    return page.models[model].layers[layer].bias(query, distances).map((values) => lookBack(values, distances));
  },
};

slider.value = toSlider(state.query);
entry.value = state.query;
draw();
