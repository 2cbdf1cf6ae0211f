"use strict";

// What keeps a tuning's page up to date.

const tuning = document.getElementById("tuning");

let waiting = null;
function refresh() {
  if (waiting) return;
  waiting = setTimeout(() => {
    waiting = null;
    for (const part of ["#live", "#ranked", "#charts"]) htmx.trigger(part, "refresh");
    if (!document.getElementById("strategy-shown")) htmx.trigger("#why", "proposed");
  }, 800);
}

function ended() {
  refresh();
  htmx.trigger("#why", "ended");
}

// What a reader has opened or chosen stays so when a part of the page comes anew.
let opened = [];
let chosen = [];
document.addEventListener("htmx:beforeSwap", (event) => {
  const part = event.detail.target;
  opened = [...part.querySelectorAll("details[open][id]")].map((each) => each.id);
  chosen = [...part.querySelectorAll("input[type=radio]:checked")].map((each) => [each.name, each.value]);
});
document.addEventListener("htmx:afterSwap", (event) => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  for (const [name, value] of chosen) {
    const again = event.detail.target.querySelector(`input[name="${name}"][value="${value}"]`);
    if (again) again.checked = true;
  }
});

document.addEventListener("click", async (event) => {
  const name = event.target.dataset && event.target.dataset.copy;
  if (!name) return;
  await navigator.clipboard.writeText(document.getElementById(name).textContent);
  event.target.textContent = "Copied";
});

if (!tuning.dataset.ended) addEventListener("load", () => followTuning(tuning.dataset.id, refresh, ended));
