"use strict";

// The charts of one tuning, and what keeps its page up to date.

const id = document.getElementById("tuning").dataset.id;
const charts = new Map();
const dark = matchMedia("(prefers-color-scheme: dark)");

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ms = (seconds) => seconds * 1e3;
const shown = (value) => `${value.toFixed(value < 10 ? 2 : 1)} ms`;

function draw(name, option) {
  const element = document.getElementById(name);
  element.classList.remove("nothing");
  if (!charts.has(name)) {
    element.textContent = "";
    charts.set(name, echarts.init(element, null, { renderer: "canvas" }));
  }
  charts.get(name).setOption(option, { notMerge: true });
}

function nothing(name, text) {
  if (charts.has(name)) return;
  const element = document.getElementById(name);
  element.classList.add("nothing");
  element.textContent = text;
}

function axis(name, extra) {
  return {
    type: "value",
    name,
    nameTextStyle: { color: color("--soft") },
    scale: true,
    axisLabel: { color: color("--soft") },
    axisLine: { lineStyle: { color: color("--line") } },
    splitLine: { lineStyle: { color: color("--line") } },
    ...extra,
  };
}

// richText: the page's policy forbids inline styles, which an HTML tooltip would need.
function frame(legend) {
  return {
    animation: false,
    textStyle: { fontFamily: "system-ui, sans-serif", color: color("--ink") },
    grid: { left: 52, right: 24, top: legend ? 40 : 26, bottom: 44 },
    legend: legend && { top: 0, right: 0, textStyle: { color: color("--soft") }, itemWidth: 16, itemHeight: 9 },
    tooltip: {
      renderMode: "richText",
      confine: true,
      backgroundColor: color("--card"),
      borderColor: color("--line"),
      textStyle: { color: color("--ink"), fontSize: 12 },
    },
  };
}

function wrapped(words) {
  return words.replace(/(.{1,46})(?:\s|$)/g, "$1\n").trim();
}

function convergence(trials, ranked) {
  const measured = trials.filter((trial) => trial.step_seconds !== null);
  if (!measured.length) return nothing("convergence", "The first trial has not finished yet.");
  let best = Infinity;
  const bestSoFar = measured.map((trial) => {
    best = Math.min(best, ms(trial.step_seconds));
    return [trial.position + 1, best];
  });
  const points = (phase) =>
    measured
      .filter((trial) => trial.phase === phase)
      .map((trial) => ({ value: [trial.position + 1, ms(trial.step_seconds)], words: trial.words }));
  const ddp = ranked.find((row) => row.is_ddp && row.step_seconds !== null);
  const line = ddp && {
    silent: true,
    symbol: "none",
    lineStyle: { color: color("--soft"), type: "dashed" },
    label: { formatter: `DDP\n${ms(ddp.step_seconds).toFixed(1)}`, position: "end", lineHeight: 14, color: color("--soft") },
    data: [{ yAxis: ms(ddp.step_seconds) }],
  };
  const tip = (point) => `${shown(point.value[1])}, trial ${point.value[0]}\n${wrapped(point.data.words || "best so far")}`;
  draw("convergence", {
    ...frame(true),
    grid: { ...frame(true).grid, right: 48 },
    tooltip: { ...frame().tooltip, formatter: tip },
    xAxis: axis("trial", { nameLocation: "middle", nameGap: 26, minInterval: 1, splitLine: { show: false } }),
    yAxis: axis("ms", {}),
    series: [
      { name: "search", type: "scatter", data: points("search"), symbolSize: 8, itemStyle: { color: color("--accent"), opacity: 0.75 } },
      { name: "confirmation", type: "scatter", data: points("confirm"), symbolSize: 7, itemStyle: { color: color("--series-2"), opacity: 0.6 } },
      { name: "best so far", type: "line", step: "end", symbol: "none", data: bestSoFar, lineStyle: { color: color("--good"), width: 2 }, itemStyle: { color: color("--good") }, markLine: line || undefined },
    ],
  });
}

function accuracy(ranked) {
  const rows = ranked.filter((row) => row.step_seconds !== null);
  if (!rows.length) return nothing("accuracy", "Appears with the first measured strategy.");
  const all = rows.flatMap((row) => [ms(row.predicted_seconds), ms(row.step_seconds)]);
  const low = Math.min(...all) * 0.95;
  const high = Math.max(...all) * 1.05;
  const limits = { min: low, max: high, axisLabel: { color: color("--soft"), showMinLabel: false, showMaxLabel: false } };
  const points = (is_ddp) =>
    rows
      .filter((row) => row.is_ddp === is_ddp)
      .map((row) => ({ value: [ms(row.predicted_seconds), ms(row.step_seconds)], words: row.words }));
  const tip = (point) => point.data.words && `predicted ${shown(point.value[0])}, measured ${shown(point.value[1])}\n${wrapped(point.data.words)}`;
  draw("accuracy", {
    ...frame(true),
    tooltip: { ...frame().tooltip, formatter: tip },
    xAxis: axis("predicted ms", { nameLocation: "middle", nameGap: 26, ...limits }),
    yAxis: axis("measured ms", { nameTextStyle: { color: color("--soft"), align: "left" }, ...limits }),
    series: [
      { type: "line", silent: true, symbol: "none", data: [[low, low], [high, high]], lineStyle: { color: color("--soft"), type: "dashed", width: 1 } },
      { name: "strategies", type: "scatter", data: points(false), symbolSize: 9, itemStyle: { color: color("--accent"), opacity: 0.75 } },
      { name: "DDP", type: "scatter", data: points(true), symbol: "diamond", symbolSize: 12, itemStyle: { color: color("--series-2") } },
    ],
  });
}

// Trials never change and only come behind: what was loaded stays, and the last page is asked again.
const PAGE = 500;
const trials = [];
let lastPage = { cursor: "", first: 0 };
async function loadTrials(get) {
  for (;;) {
    const { cursor, first } = lastPage;
    const page = await get(`/trials?limit=${PAGE}${cursor && `&cursor=${cursor}`}`);
    trials.splice(first, page.items.length, ...page.items);
    if (!page.next) return;
    lastPage = { cursor: page.next, first: first + page.items.length };
  }
}

async function load() {
  const get = async (what) => {
    const answer = await fetch(`/v1/tunings/${id}${what}`);
    if (!answer.ok) throw new Error(`${what}: ${answer.status}`);
    return answer.json();
  };
  const [tuning, ranked] = await Promise.all([get(""), get(`/strategies?limit=${PAGE}`)]);
  await loadTrials(get);
  convergence(trials, ranked.items);
  accuracy(ranked.items);
  offerTimelines(tuning, ranked.items);
}

let waiting = null;
function refresh() {
  if (waiting) return;
  waiting = setTimeout(() => {
    waiting = null;
    htmx.trigger("#live", "refresh");
    htmx.trigger("#ranked", "refresh");
    load().catch(console.error);
  }, 800);
}

function follow() {
  const source = new EventSource(`/v1/tunings/${id}/events`);
  source.addEventListener("progress", refresh);
  source.addEventListener("end", () => {
    source.close();
    refresh();
  });
}

document.addEventListener("click", async (event) => {
  const name = event.target.dataset && event.target.dataset.copy;
  if (!name) return;
  await navigator.clipboard.writeText(document.getElementById(name).textContent);
  event.target.textContent = "Copied";
});
dark.addEventListener("change", () => {
  timelineShown = "";
  load().catch(console.error);
});
addEventListener("resize", () => charts.forEach((chart) => chart.resize()));
load().then(follow, console.error);
