"use strict";

// What keeps a tuning's page up to date.

const tuning = document.getElementById("tuning");

let waiting = null;
function refresh() {
  if (waiting) return;
  waiting = setTimeout(() => {
    waiting = null;
    for (const part of ["#live", "#ranked", "#charts"]) htmx.trigger(part, "refresh");
  }, 800);
}

// Another strategy is the fastest: it takes the place of the one that was compared with DDP, unless
// a reader has chosen one.
let fastest = document.getElementById("fastest").dataset.strategy;
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id !== "live") return;
  const now = document.getElementById("fastest").dataset.strategy;
  if (now === fastest) return;
  fastest = now;
  htmx.trigger("#why", "proposed");
});

function follow() {
  const source = new EventSource(`/v1/tunings/${tuning.dataset.id}/events`);
  source.addEventListener("progress", refresh);
  source.addEventListener("end", () => {
    source.close();
    refresh();
    for (const part of ["#why", "#frameworks"]) htmx.trigger(part, "ended");
  });
}

if (!tuning.dataset.ended) addEventListener("load", follow);
