"use strict";

// What all pages share: parts that come anew keep what a reader has done to them.

// Idiomorph merges new HTML into what is shown, so that focus, selection and scrolling stay. These
// attributes are the reader's, or of what charts.js has drawn, and not the server's.
const kept = {
  open: "details",
  checked: "input[type=checkbox], input[type=radio]",
  value: "input[type=search]",
  selected: ".filters option",
  width: "canvas",
  height: "canvas",
  style: "canvas, .plot",
};
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
  !(Object.hasOwn(kept, name) && element.matches(kept[name]));

// A part of a page that was not there yet says why it cannot be made; one that has no turn asks again.
// A part that is shown already stays as it is.
const LATER_SECONDS = 5;
const AWAY = [0, 502, 503, 504]; // no answer; proxies have further statuses, with pages of HTML
function notMade({ detail: { target, xhr } }) {
  const place = target.querySelector(".pending");
  if (!place) return;
  const retry = xhr.getResponseHeader("Retry-After");
  const told = retry || xhr.getResponseHeader("Content-Type")?.includes("json");
  const away = AWAY.includes(xhr.status) || !told;
  const later = away ? LATER_SECONDS : retry;
  if (later) {
    if (away) place.textContent = "The service does not answer. This page asks again.";
    setTimeout(() => htmx.trigger(target, "again"), 1000 * later);
    return;
  }
  const problem = JSON.parse(xhr.responseText);
  const detail = document.createElement("strong");
  detail.textContent = problem.detail;
  place.className = "refusal";
  place.setAttribute("role", "alert");
  place.replaceChildren(detail, ` ${problem.remedy}`);
}
document.addEventListener("htmx:responseError", notMade);
document.addEventListener("htmx:sendError", notMade);

// A link to a form, as /models#upload, opens it.
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (!(target instanceof HTMLDetailsElement)) return;
  target.open = true;
  target.scrollIntoView();
}
addEventListener("DOMContentLoaded", openTarget);
addEventListener("hashchange", openTarget);

document.addEventListener("click", async ({ target }) => {
  const name = target.dataset && target.dataset.copy;
  if (!name) return;
  const text = document.getElementById(name);
  try {
    await navigator.clipboard.writeText(text.textContent);
    target.textContent = "Copied";
  } catch { // there is no clipboard on plain HTTP but for localhost, and a reader may refuse it
    getSelection().selectAllChildren(text);
    target.textContent = "Selected";
  }
});
