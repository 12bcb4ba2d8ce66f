"use strict";
// Draws the curves for the selected metric, axis and scale. Hidden lines stay hidden.
const curves = JSON.parse(document.getElementById("curves").textContent);
Bokeh.logger.set_level("warn");
const entries = [...document.querySelectorAll(".legend li")];
const hidden = new Set();
const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = name => document.querySelector(`input[name=${name}]:checked`).value;
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const array = values => Float64Array.from(values, one => one ?? NaN);
// Without PlainText, Bokeh would load MathJax from the network for names with dollars.
const plain = text => new Bokeh.PlainText({text});
let shown = {lines: []}, builds = 0;

// The selected lines and their bands; on a logarithmic scale bands end a little below the lines.
function select(metric, axis, scale) {
  const all = chosen("show") === "every";
  const lines = [];
  curves.lines.forEach((line, number) => {
    const own = line.y[metric], x = (own?.x ?? line.x)[axis];
    if (!own || !x || !(all || "best" in entries[number].dataset)) return;
    const quantiles = own.median && (scale === "log" || own.seeds);
    lines.push({number, own, quantiles, x: array(x), y: array(quantiles ? own.median : own.mean)});
  });
  const least = Math.min(...lines.flatMap(line => [...line.y].filter(one => one > 0))) / 3;
  for (const line of lines) if (line.own.deviation) {
    const around = array(line.own.deviation);
    const low = line.quantiles ? array(line.own.low) : line.y.map((one, i) => one - around[i]);
    line.low = scale === "log" ? low.map(one => Math.max(one, least)) : low;
    line.high = line.quantiles ? array(line.own.high) : line.y.map((one, i) => one + around[i]);
  }
  return lines;
}

function frame(metric, axis, scale) {
  const plot = Bokeh.Plotting.figure({
    height: innerWidth < 640 ? 320 : 430, toolbar_location: innerWidth < 640 ? "above" : "right", sizing_mode: "stretch_width", y_axis_type: scale, tools: "pan,box_zoom,wheel_zoom,reset,save",
    x_axis_label: plain(curves.axes.find(one => one.name === axis).label), y_axis_label: plain(metric),
    background_fill_color: null, border_fill_color: null, outline_line_color: null, output_backend: "canvas",
  });
  plot.toolbar.logo = null;
  plot.toolbar.active_drag = plot.toolbar.tools.find(one => one.type === "BoxZoomTool");
  plot.add_tools(new Bokeh.CrosshairTool({dimensions: "height", visible: false, line_color: style("--soft"), line_alpha: .6}));
  for (const one of [...plot.xaxes, ...plot.yaxes]) Object.assign(one, {
    axis_label_text_color: style("--ink"), axis_label_text_font_style: "normal", major_label_text_color: style("--soft"),
    axis_line_color: style("--soft"), major_tick_line_color: style("--soft"), minor_tick_line_color: null});
  for (const one of [...plot.xgrids, ...plot.ygrids]) one.grid_line_color = style("--line");
  plot.y_range.only_visible = true;
  return plot;
}

function draw(plot, line, axis) {
  const data = entries[line.number].dataset, color = dark.matches ? data.dark : data.color;
  const source = new Bokeh.ColumnDataSource({data: {x: line.x, y: line.y, low: line.low ?? line.y, high: line.high ?? line.y}});
  const x = {field: "x"}, y = {field: "y"};
  const parts = [plot.line(x, y, {source, color, line_width: 2, line_dash: JSON.parse(data.dashes)})];
  if (line.low) parts.push(plot.varea(x, {field: "low"}, {field: "high"}, {source, color, fill_alpha: .18}));
  const alone = [...line.y.keys()].filter(i => line.y[i] === line.y[i] && !(line.y[i - 1] < Infinity) && !(line.y[i + 1] < Infinity));
  if (alone.length) parts.push(plot.scatter(alone.map(i => line.x[i]), alone.map(i => line.y[i]), {color, size: 6}));
  line.fitted = [...parts];
  if (line.own.seeds) {  // they do not affect the limits of the axes
    const seeds = line.own.seeds, diverged = seeds.filter(one => one.diverged), end = one => one.y.findLastIndex(y => y !== null);
    parts.push(plot.multi_line(seeds.map(one => array(one.x[axis])), seeds.map(one => array(one.y)), {color, line_width: 1, line_alpha: .6}));
    const ends = diverged.filter(one => end(one) >= 0);
    parts.push(plot.scatter(ends.map(one => one.x[axis][end(one)]), ends.map(one => one.y[end(one)]), {marker: "x", color, size: 8}));
  }
  if (line.own.bound !== undefined) {
    const span = new Bokeh.Span({location: line.own.bound, dimension: "width", line_color: color, line_dash: [1, 3]});
    plot.add_layout(span);
    parts.push(span);
  }
  line.parts = parts;
}

// The index of the value nearest to another.
const nearest = (values, other) => values.reduce((best, one, i) => Math.abs(one - other) < Math.abs(values[best] - other) ? i : best, 0);

// Shows the cost of the evaluation nearest to the pointer, and the values of all lines there. A line that was
// not evaluated at this cost shows its nearest value, with the cost.
function showValues(pointer) {
  const costs = shown.lines.filter(line => !hidden.has(line.number)).flatMap(line => [...line.x]);
  const at = pointer === null ? undefined : costs[nearest(costs, pointer)];
  for (const line of shown.lines) {
    const i = nearest(line.x, at), middle = line.y[i], own = line.own;
    const around = !own.deviation || own.deviation[i] === null ? "" : line.quantiles
      ? ` (${own.low[i].toPrecision(3)} to ${own.high[i].toPrecision(3)})` : " ± " + own.deviation[i].toPrecision(2);
    const text = (middle === middle ? middle.toPrecision(4) + around : "–") + (line.x[i] === at ? "" : ` at ${line.x[i]}`);
    entries[line.number].querySelector("output").value = at === undefined ? "" : text;
  }
  document.getElementById("at").textContent = at === undefined ? "" : `${shown.label}: ${at}`;
}

function hide() {
  for (const line of shown.lines) for (const part of line.parts) part.visible = !hidden.has(line.number);
  entries.forEach((one, number) => one.querySelector("button").setAttribute("aria-pressed", !hidden.has(number)));
}

async function build() {
  const [metric, axis, scale] = ["metric", "axis", "scale"].map(chosen), number = ++builds;
  const lines = select(metric, axis, scale), plot = frame(metric, axis, scale);
  lines.forEach(line => draw(plot, line, axis));
  plot.y_range.renderers = lines.flatMap(line => line.fitted);
  showValues(null);
  shown.view?.remove();
  const chart = document.getElementById("chart");
  chart.replaceChildren();
  Bokeh.documents.length = 0;  // remove the previous chart's document
  shown = {lines, label: curves.axes.find(one => one.name === axis).label};
  const own = shown;
  entries.forEach((one, k) => { one.hidden = !lines.some(line => line.number === k); });
  hide();
  for (const name of ["mousemove", "tap"]) plot.on_event(name, event => showValues(event.x));
  plot.on_event("mouseleave", () => showValues(null));
  own.view = await Bokeh.Plotting.show(plot, chart);
  if (number !== builds) own.view.remove();
  else Object.assign(chart.dataset, {metric, axis, scale, show: chosen("show"), lines: lines.length});
}

// The first scale of a metric is the preferred one; it may be the only one.
function choose(changed) {
  const scales = curves.scales[chosen("metric")];
  const scale = changed !== "metric" && scales.includes(chosen("scale")) ? chosen("scale") : scales[0];
  for (const one of document.querySelectorAll("input[name=scale]")) {
    one.disabled = !scales.includes(one.value);
    one.checked = one.value === scale;
  }
  build();
}

document.documentElement.classList.add("live");
document.querySelectorAll(".controls input").forEach(one => one.addEventListener("change", () => choose(one.name)));
entries.forEach((one, number) => one.querySelector("button").addEventListener("click", () => {
  if (!hidden.delete(number)) hidden.add(number);
  hide();
}));
dark.addEventListener("change", build);
choose("metric");
