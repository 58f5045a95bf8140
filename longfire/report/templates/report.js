// The charts of a comparison or, by length only, of several.
const hidden = new Set();
const redraws = [];
const shown = () => page.series.filter((one) => !hidden.has(one.label));
const update = () => redraws.forEach((draw) => draw());
const at = (id) => document.getElementById(id);

function section(id, spec, series = page.series) {
  const draw = lineChart(at(id), spec);
  redraws.push(legend(at(id), series, hidden, update), draw);
}

function look(one, i) {
  return { label: one.label, cls: one.cls, strong: one.strong, marker: i };
}

function byLength({ metric, lengths, trained, texts, ...data }, text) {
  const series = data.series.map((one, i) => ({ ...look(one, i), points: text[metric.test][one.label] }))
    .filter((one) => !hidden.has(one.label));
  const values = series.flatMap((one) => one.points.flatMap((p) => [p[1], p[2], p[3]]));
  const on = texts.length > 1 ? ` on ${text.name}` : "";
  return {
    alt: `${metric.name} by length${on}, one line per encoding. The table below has the same numbers.`,
    series,
    x: { scale: "log", domain: [lengths[0] / 1.12, lengths.at(-1) * 1.12], ticks: lengths, label: metric.axis,
      name: (n) => `${count(n)} ${metric.unit}${n === trained ? " (training length)" : ""}` },
    y: { domain: metric.limits || range(values) },
    marks: [{ x: trained, text: "training length" }],
    ends: true,
  };
}

for (const data of page.comparisons || [page]) {
  if (data.texts.length === 1) {
    section(data.chart, () => byLength(data, data.texts[0]), data.series);
    continue;
  }
  const panels = el("div", { class: "panels maps" });
  redraws.push(legend(at(data.chart), data.series, hidden, update));
  at(data.chart).append(panels);
  for (const text of data.texts) {
    const panel = el("div", { class: "panel" }, el("h3", {}, text.name));
    panels.append(panel);
    redraws.push(lineChart(panel, () => byLength(data, text)));
  }
}

if (at("losses")) section("losses", () => {
  const series = shown().map((one) => ({ label: one.label, cls: one.cls, strong: one.strong, points: one.losses }));
  const steps = series.flatMap((one) => one.points.map((p) => p[0]));
  const later = series.flatMap((one) => one.points.slice(Math.floor(one.points.length / 20))); // the start is far above
  return {
    alt: "Training loss by step, one line per encoding.",
    series,
    ends: true,
    x: { domain: [0, Math.max(1, ...steps)], label: "step", name: (n) => `step ${count(Math.round(n))}` },
    y: { domain: range(later.flatMap((p) => [p[1], p[2], p[3]])) },
  };
}, page.series.filter((one) => one.losses.length));

if (at("positions")) {
  const lengths = page.lengths.filter((n) => page.series.some((one) => one.positions[n]));
  const select = el("select", { "aria-label": "length" }, ...lengths.map((n) => el("option", { value: n }, count(n))));
  select.value = lengths.at(-1);
  select.addEventListener("change", update);
  at("positions").append(el("label", { class: "soft" }, "in sequences of ", select, " tokens"));
  section("positions", () => {
    const bins = new Map();
    const series = page.series.map((one, i) => {
      const points = (one.positions[select.value] || []).map(([from, to, loss]) => {
        const middle = Math.sqrt(Math.max(1, from) * to);
        bins.set(middle, `tokens ${count(from + 1)} to ${count(to)}`);
        return [middle, loss];
      });
      return { ...look(one, i), points };
    }).filter((one) => !hidden.has(one.label));
    return {
      alt: "Loss by position in the sequence, one line per encoding.",
      ends: true,
      series,
      x: { scale: "log", domain: [1, Number(select.value)], label: "position in the sequence", name: (x) => bins.get(x) },
      y: { domain: range(series.flatMap((one) => one.points.map((p) => p[1]))) },
      marks: [{ x: page.trained, text: "training length" }],
    };
  });
}

if (at("biases")) {
  let model = page.biases[0], by = "distance";
  let query = Math.max(...model.queries);
  const controls = el("div", { class: "controls" }), panels = el("div", { class: "panels" });
  at("biases").append(controls, panels);

  function build() {
    const models = page.biases.map((one) => [one.label, one.label]);
    const queries = model.queries.map((n) => [String(n), count(n + 1)]); // the record counts positions from 0
    controls.replaceChildren(
      ...(models.length > 1 ? [choice("encoding", models, model.label, (label) => {
        model = page.biases.find((one) => one.label === label);
        if (!model.queries.includes(query)) query = Math.max(...model.queries);
        build();
      })] : []),
      choice("query at", queries, String(query), (n) => { query = Number(n); build(); }),
      choice("keys by", [["distance", "distance"], ["position", "position"]], by, (way) => { by = way; build(); }));
    panels.replaceChildren();
    // relative to each head's maximum; 10 below it, a key gets e^−10 of the weight: practically no attention
    const layers = model.layers.map((layer) => ({ ...layer, heads: layer.heads.filter((one) => one.query === query)
      .map((one) => ({ ...one, top: Math.max(...one.points.map((p) => p[1])) })) }));
    const lowest = Math.min(...layers.flatMap((layer) => layer.heads.flatMap((one) => one.points.map((p) => p[1] - one.top))));
    const domain = [Math.min(-0.5, Math.max(-10, lowest * 1.05)), Math.max(0.02, Math.min(0.4, -lowest / 25))];
    for (const layer of layers) {
      const panel = el("div", { class: "panel" }, el("h3", {}, `layer ${layer.layer + 1}`));
      panels.append(panel);
      lineChart(panel, () => ({
        alt: `Bias of each head in layer ${layer.layer + 1} for the query at ${query + 1}.`,
        height: 210,
        nearest: true,
        series: layer.heads.map((one, i) => ({
          label: `head ${one.head + 1}`, cls: `h${i % 8}`,
          points: one.points.map(([key, value]) => [by === "distance" ? query - key : key + 1, value - one.top]),
        })),
        x: by === "distance"
          ? { scale: "log1", domain: [0, Math.max(1, query)], label: "distance", name: (n) => `distance ${count(n)}` }
          : { domain: [1, Math.max(2, query + 1)], label: "key position", name: (n) => `key ${count(n)}` },
        y: { domain },
        marks: by === "distance" ? [{ x: page.trained_tokens, text: "" }] : [],
      }));
    }
  }
  build();
}

update();
