"use strict";

// Draws every [data-plot] with Chart.js. What a plot is: autosync/api/views/charts.py.

const drawn = new Map(); // canvas to its Chart and the plot that it shows
const ROW = 34;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function amount(value, unit) {
  if (unit === "bytes") {
    for (const [size, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)} ${name}`;
    }
    return `${value} B`;
  }
  const number = value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return unit === "%" ? `${number} %` : unit === "×" ? `${number}×` : number;
}

// The beginning and the end of a long name: its end tells strategies apart.
const shortened = (name, longest) =>
  name.length > longest ? `${name.slice(0, longest - 8)}…${name.slice(-7)}` : name;

function scale(plot, key, narrow) {
  const axis = plot[key];
  const vertical = key === "y";
  const rows = axis.categories.length;
  const rules = plot.rules.filter((each) => each.axis === key).map((each) => each.at);
  const longest = narrow ? 16 : 34;
  return {
    type: axis.log ? "logarithmic" : "linear",
    reverse: vertical && rows > 0,
    min: rows ? -0.5 : axis.low ?? undefined,
    max: rows ? rows - 0.5 : axis.high ?? undefined,
    suggestedMin: Math.min(...rules),
    suggestedMax: Math.max(...rules),
    beginAtZero: false,
    grace: rows || axis.low !== null ? 0 : "6%",
    title: { display: Boolean(axis.title), text: axis.title, color: css("soft") },
    grid: { color: css("line"), display: !rows },
    border: { display: false },
    afterBuildTicks: axis.log ? (made) => { made.ticks = made.ticks.filter(({ value }) => Math.log10(value) % 1 === 0); } : rows ? (made) => { made.ticks = axis.categories.map((_, value) => ({ value })); } : undefined,
    afterFit: vertical && plot.wide ? (made) => { made.width = 150; } : undefined,
    ticks: {
      color: css(rows ? "ink" : "soft"),
      autoSkip: !(vertical && rows),
      maxRotation: 0,
      includeBounds: false,
      precision: axis.unit ? undefined : 0,
      callback: (value) => (rows ? shortened(axis.categories[value] ?? "", longest) : amount(value, axis.unit)),
    },
  };
}

function dataset(series, sideways) {
  const colour = css(series.colour);
  const data = series.points.map(([x, y, words]) => ({ x, y, words }));
  const shared = { label: shortened(series.name, 40), data, borderColor: colour, backgroundColor: colour };
  if (series.kind === "bars") {
    const size = series.thickness ? { barThickness: series.thickness } : { maxBarThickness: 64 };
    return { ...shared, ...size, type: "bar", grouped: false, indexAxis: sideways ? "y" : "x", minBarLength: 1, categoryPercentage: 1 };
  }
  if (series.kind === "line" || series.kind === "steps") {
    return { ...shared, type: "line", stepped: series.kind === "steps", pointRadius: 0, pointHitRadius: 6, borderWidth: 2 };
  }
  const hollow = series.kind === "rings" ? { backgroundColor: "transparent", borderWidth: 2 } : {};
  const stroke = series.kind === "strokes" ? { pointStyle: "line", rotation: 90, radius: 10, borderWidth: 3 } : {};
  return { ...shared, type: "scatter", radius: 3.5, ...hollow, ...stroke };
}

// Lines across the plot at values that matter: a limit, a baseline, the end of the iteration.
const rules = {
  id: "rules",
  afterDatasetsDraw(chart, _, { lines }) {
    const { ctx, chartArea: area } = chart;
    ctx.save();
    ctx.font = "11px system-ui, sans-serif";
    for (const { axis, at, name } of lines) {
      const place = chart.scales[axis].getPixelForValue(at);
      const upright = axis === "x";
      ctx.strokeStyle = css(name === "limit" ? "bad" : "soft");
      ctx.setLineDash(name === "limit" ? [] : [5, 4]);
      ctx.beginPath();
      ctx.moveTo(upright ? place : area.left, upright ? area.top : place);
      ctx.lineTo(upright ? place : area.right, upright ? area.bottom : place);
      ctx.stroke();
      ctx.fillStyle = css("soft");
      ctx.textAlign = upright ? "center" : "right";
      ctx.fillText(name, upright ? place : area.right, upright ? area.top - 5 : place - 4);
    }
    ctx.restore();
  },
};

function draw(canvas) {
  const plot = JSON.parse(canvas.dataset.plot);
  const holder = canvas.parentElement;
  const rows = plot.y.categories.length;
  const narrow = holder.clientWidth < 560;
  const named = plot.series.filter((each) => each.name && each.points.length);
  const legend = named.length > 1;
  holder.style.height = `${rows ? rows * ROW + 90 + (legend ? (narrow ? 70 : 30) : 0) : 300}px`;
  drawn.get(canvas)?.chart.destroy();
  const chart = new Chart(canvas, {
    data: { datasets: plot.series.filter((each) => each.points.length).map((each) => dataset(each, rows > 0)) },
    options: {
      animation: false,
      indexAxis: rows ? "y" : "x",
      maintainAspectRatio: false,
      layout: { padding: { top: plot.rules.some((each) => each.axis === "x" && each.name) ? 16 : 4, right: 8 } },
      scales: { x: scale(plot, "x", narrow), y: scale(plot, "y", narrow) },
      interaction: { mode: "nearest", intersect: true },
      plugins: {
        legend: {
          display: legend,
          position: "bottom",
          labels: { color: css("soft"), boxWidth: 12, boxHeight: 8, filter: (item) => Boolean(item.text) },
        },
        tooltip: {
          displayColors: false,
          filter: (item) => Boolean(item.raw.words),
          callbacks: { title: () => "", label: (item) => item.raw.words },
        },
        rules: { lines: plot.rules },
      },
    },
    plugins: [rules],
  });
  drawn.set(canvas, { chart, shown: canvas.dataset.plot });
}

function drawAll() {
  for (const [canvas, { chart }] of drawn) {
    if (!canvas.isConnected) {
      chart.destroy();
      drawn.delete(canvas);
    }
  }
  for (const canvas of document.querySelectorAll("canvas[data-plot]")) {
    if (drawn.get(canvas)?.shown !== canvas.dataset.plot) draw(canvas);
  }
}

addEventListener("DOMContentLoaded", drawAll);
addEventListener("htmx:afterSettle", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn.keys()].forEach(draw));
