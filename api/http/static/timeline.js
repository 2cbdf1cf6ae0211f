"use strict";

// One iteration of a strategy, predicted above and measured below, on one time axis.
// Loaded before tuning.js, whose helpers it uses once the page is there.

const LANES = {
  gradient: "gradients",
  value: "new values",
  push: "push",
  pull: "pull",
  local_reduce: "reduce in node",
  local_broadcast: "broadcast in node",
};
const LANE_HEIGHT = 26;
const MOST_DIFFERENCES = 6;
const NARROW = 560;
const OPTIONAL_CELLS = new Set([2, 5, 6]); // what a narrow page has no room for
const timelineOf = document.getElementById("timeline-of");
let timelineShown = "";

function size(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function offerTimelines(tuning, ranked) {
  if (!ranked.length) return nothing("timeline", "Appears with the first proposed strategy.");
  const chosen = timelineOf.value;
  const options = ranked.map((row) => {
    const label = `${row.recorded ? "" : "(predicted only) "}${row.words}`;
    return new Option(label.length > 90 ? `${label.slice(0, 89)}…` : label, row.strategy_id);
  });
  timelineOf.replaceChildren(...options);
  const usual = tuning.result ? tuning.result.strategy_id : ranked[0].strategy_id;
  const kept = timelineOf.dataset.chosen && ranked.some((row) => row.strategy_id === chosen);
  timelineOf.value = kept ? chosen : usual;
  const recorded = ranked.find((row) => row.strategy_id === timelineOf.value).recorded;
  showTimeline(`${timelineOf.value} ${recorded}`).catch(console.error);
}

async function showTimeline(what) {
  if (what === timelineShown) return;
  timelineShown = what;
  const query = `strategy=${timelineOf.value}`;
  const answer = await fetch(`/v1/tunings/${id}/timeline?${query}`);
  if (!answer.ok) throw new Error(`timeline: ${answer.status}`);
  const timeline = await answer.json();
  if (what !== timelineShown) return; // another one was chosen meanwhile
  document.getElementById("timeline-trace").href = `/v1/tunings/${id}/trace?${query}`;
  for (const part of ["trace", "of", "keys"]) document.getElementById(`timeline-${part}`).hidden = false;
  drawTimeline(timeline);
  tellDifferences(timeline);
}

// The rank that computes longest: the others wait for it.
function slowestRank(iteration) {
  const busy = new Map();
  for (const each of iteration.compute) {
    const seconds = each.phase === "wait" ? 0 : each.stop_seconds - each.start_seconds;
    busy.set(each.rank, (busy.get(each.rank) || 0) + seconds);
  }
  const most = Math.max(...busy.values());
  return [...busy.keys()].find((rank) => busy.get(rank) > most - 1e-9);
}

function bars(iteration, lanes, rank) {
  const compute = iteration.compute
    .filter((each) => each.rank === rank)
    .map((each) => ({
      value: [ms(each.start_seconds), ms(each.stop_seconds), 0, ms(each.start_seconds)],
      itemStyle: { color: color(`--phase-${each.phase}`) },
      words: `${each.phase}, rank ${rank}: ${shown(ms(each.stop_seconds - each.start_seconds))}`,
    }));
  const messages = (iteration.messages || []).map((each) => ({
    value: [ms(each.issued_seconds), ms(each.arrived_seconds), lanes.indexOf(each.channel), ms(each.turn_seconds)],
    itemStyle: { color: color(`--lane-${each.channel.replaceAll("_", "-")}`) },
    words:
      `message ${each.message}, ${each.operation.replaceAll("_", "-")}, ${size(each.wire_bytes)}\n` +
      `issued at ${shown(ms(each.issued_seconds))}, there at ${shown(ms(each.arrived_seconds))}\n` +
      `its turn took ${shown(ms(each.arrived_seconds - each.turn_seconds))}`,
  }));
  return [...compute, ...messages];
}

// A thin line from issue to arrival; thick where its channel works for the message.
function bar(params, api) {
  const [start, y] = api.coord([api.value(0), api.value(2)]);
  const stop = api.coord([api.value(1), api.value(2)])[0];
  const turn = api.coord([api.value(3), api.value(2)])[0];
  const fill = api.visual("color");
  const lane = api.size([0, 1])[1];
  const box = (from, to, height, opacity, below) => ({
    type: "rect",
    shape: { x: from, y: y + below - height / 2, width: Math.max(to - from, 0.5), height },
    style: { fill, opacity, stroke: color("--card"), lineWidth: height > 4 ? 0.5 : 0 },
  });
  const waits = turn > start ? [box(start, turn, 2, 0.7, lane * 0.4)] : [];
  return { type: "group", children: [...waits, box(turn, stop, lane * 0.64, 1, 0)] };
}

function drawTimeline(timeline) {
  const parts = [["Predicted", timeline.predicted]];
  if (timeline.measured) parts.push(["Measured", timeline.measured]);
  const used = new Set(parts.flatMap(([, part]) => (part.messages || []).map((each) => each.channel)));
  const lanes = ["compute", ...Object.keys(LANES).filter((name) => used.has(name))];
  const rank = slowestRank(timeline.predicted);
  const last = (part) => Math.max(...[...part.compute, ...(part.messages || [])].map((each) => each.stop_seconds || each.arrived_seconds));
  const end = ms(Math.max(...parts.map(([, part]) => last(part))));
  const height = lanes.length * LANE_HEIGHT;
  const top = (index) => 30 + index * (height + 62);
  const element = document.getElementById("timeline");
  element.style.height = `${top(parts.length) - 16}px`;
  const silent = timeline.is_ddp && timeline.measured ? "  (torch's DDP does not say when its messages travel, nor when backward waits for them)" : "";
  draw("timeline", {
    ...frame(false),
    title: parts.map(([name, part], index) => ({
      text: `${name} ${shown(ms(part.step_seconds))}${index ? silent : ""}`,
      top: top(index) - 27,
      left: 0,
      textStyle: { color: color("--ink"), fontSize: 13, fontWeight: 600 },
    })),
    grid: parts.map((_, index) => ({ left: innerWidth < NARROW ? 84 : 118, right: 18, top: top(index), height })),
    tooltip: { ...frame().tooltip, formatter: (point) => point.data.words },
    dataZoom: [{ type: "inside", xAxisIndex: parts.map((_, index) => index), filterMode: "none", zoomOnMouseWheel: "ctrl" }],
    xAxis: parts.map((_, index) => axis("", { gridIndex: index, min: 0, max: end, axisLabel: { color: color("--soft"), formatter: (value) => `${+value.toFixed(2)} ms`, hideOverlap: true, showMaxLabel: false } })),
    yAxis: parts.map((_, index) => ({
      type: "category",
      gridIndex: index,
      inverse: true,
      data: lanes.map((lane) => LANES[lane] || lane),
      axisTick: { show: false },
      axisLine: { show: false },
      axisLabel: { color: color("--soft") },
    })),
    series: parts.map(([name, part], index) => ({
      name,
      type: "custom",
      xAxisIndex: index,
      yAxisIndex: index,
      renderItem: bar,
      clip: true,
      encode: { x: [0, 1], y: 2 },
      data: bars(part, lanes, rank),
      markLine: {
        silent: true,
        symbol: "none",
        lineStyle: { color: color("--soft"), type: "dashed" },
        label: { show: false },
        data: [{ xAxis: ms(part.step_seconds) }],
      },
    })),
  });
  charts.get("timeline").resize();
}

function tellDifferences(timeline) {
  const rows = timeline.differences.slice(0, MOST_DIFFERENCES).map((each) => {
    const row = document.createElement("tr");
    const cells = [
      each.message,
      each.operation.replaceAll("_", "-"),
      size(each.wire_bytes),
      shown(ms(each.predicted_seconds)),
      shown(ms(each.measured_seconds)),
      shown(ms(each.predicted_arrived_seconds)),
      shown(ms(each.measured_arrived_seconds)),
    ];
    for (const [place, text] of cells.entries()) {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (place !== 1) cell.className = OPTIONAL_CELLS.has(place) ? "num optional" : "num";
      row.append(cell);
    }
    return row;
  });
  document.querySelector("#differences tbody").replaceChildren(...rows);
  document.getElementById("differences").hidden = !rows.length;
  const missing = timeline.measured
    ? timeline.clock === "by host"
      ? "Hosts have clocks of their own: their measured times are aligned at each host's latest forward start."
      : ""
    : "No trial of this strategy recorded its timeline: the finalists' and DDP's first repeats do.";
  document.getElementById("timeline-note").textContent = missing;
}

timelineOf.addEventListener("change", () => {
  timelineOf.dataset.chosen = "yes";
  showTimeline(`${timelineOf.value} chosen`).catch(console.error);
});
