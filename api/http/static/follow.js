"use strict";

// Says when a tuning has news: calls `refresh` after each, and `ended` after the last.
//
// A browser keeps at most six connections to a host, for all tabs together, and one that listens to
// events is taken until the tuning has ended. So one tab listens, the one that holds a lock; the
// others ask every few seconds, and one of them takes the lock when it is free. Where a browser has no
// locks (on plain HTTP but for localhost), all ask.

const ASK_MILLISECONDS = 3000;
const FINAL = ["finished", "failed", "cancelled"];

function followTuning(id, refresh, ended) {
  const root = document.documentElement.dataset.rootPath;
  const address = `${root}/v1/tunings/${id}`;
  let seen = null;
  let asking = 0;
  let over = false;

  function end() {
    if (over) return;
    over = true;
    clearInterval(asking);
    ended();
  }

  async function ask() {
    if (document.hidden) return;
    const answer = await fetch(address, { headers: { Accept: "application/json" } }).catch(() => null);
    if (!answer || over) return; // the service is away: it may come back
    const text = await answer.text();
    if (text !== seen) refresh();
    seen = text;
    if (answer.ok && FINAL.includes(JSON.parse(text).state)) end();
  }

  function listen(done) {
    const source = new EventSource(`${address}/events`);
    source.addEventListener("progress", refresh);
    source.addEventListener("end", () => {
      source.close();
      end();
      done();
    });
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return; // it connects again by itself
      asking = setInterval(ask, ASK_MILLISECONDS);
      done();
    });
  }

  asking = setInterval(ask, ASK_MILLISECONDS);
  document.addEventListener("visibilitychange", () => { if (!over) ask(); });
  navigator.locks?.request(`autosync events ${root}`, () => {
    if (over) return null;
    clearInterval(asking);
    return new Promise(listen);
  });
}
