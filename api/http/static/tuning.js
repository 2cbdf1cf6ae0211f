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

// Why one strategy is faster than DDP. One that a reader has chosen stays.
function explain() {
  if (!document.querySelector("#strategy-shown[data-chosen]")) htmx.trigger("#why", "proposed");
}

let fastest = document.getElementById("fastest").dataset.strategy;
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id !== "live") return;
  const now = document.getElementById("fastest").dataset.strategy;
  if (now !== fastest) explain();
  fastest = now;
});

function ended() {
  refresh();
  explain();
  htmx.trigger("#frameworks", "ended");
}

if (!tuning.dataset.ended) addEventListener("load", () => followTuning(tuning.dataset.id, refresh, ended));
