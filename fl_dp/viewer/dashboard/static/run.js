// One run: its curves, and what is new while it goes on.
import { charts } from "./charts.js";
import { duration, number, word } from "./words.js";

const MOST = 2000;
const MOST_LINES = 300; // of the log
const place = document.getElementById("run");
const connection = document.getElementById("connection");
const shown = charts(place, [""]);
let points = [];
let waiting = false;

function draw() {
  waiting = false;
  for (const chart of shown) chart.show([{ mean: points }]);
}

function take(added, anew) {
  points = anew ? added : points.concat(added);
  // Every second point of a long run is enough, and the last one stays.
  while (points.length > MOST) {
    points = points.filter((_, index) => index % 2 === 0 || index === points.length - 1);
  }
  if (!waiting) {
    waiting = true;
    setTimeout(draw, 50);
  }
}

function put(id, text) {
  const place = document.getElementById(id);
  if (place) place.textContent = text; // a statistic has no rounds
}

function state(said) {
  const badge = document.querySelector("#state .state");
  badge.className = `state state-${said.state}`;
  badge.textContent = word(`state.${said.state}`);
  put("round", `${number(said.round)} / ${number(said.rounds)}`);
  put("score", said.score);
  put("left", duration(said.left));
  const promise = document.querySelector("#promise .promise");
  if (!promise) return;
  promise.querySelector(".numbers").textContent = said.numbers;
  const terms = promise.querySelector(".terms"), part = promise.querySelector(".gauge .part");
  if (terms) terms.textContent = said.terms;
  if (part && said.share !== null) part.setAttribute("width", `${100 * said.share}%`);
  // Before the first round there was nothing to show it beside.
  if (!terms && said.share !== null) location.reload();
}

// The end of the log stays in sight for whoever has it in sight.
function lines(added, anew) {
  const log = document.getElementById("log");
  const atEnd = log.hidden || log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  const before = anew || !log.textContent ? [] : log.textContent.split("\n");
  log.textContent = before.concat(added).slice(-MOST_LINES).join("\n");
  log.hidden = !log.textContent;
  document.getElementById("no-log").hidden = !log.hidden;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function follow() {
  const source = new EventSource(place.dataset.events);
  source.addEventListener("open", () => { connection.textContent = word("js.live"); });
  source.addEventListener("rounds", (event) => {
    const data = JSON.parse(event.data);
    take(data.points, data.anew);
  });
  source.addEventListener("log", (event) => {
    const data = JSON.parse(event.data);
    lines(data.lines, data.anew);
  });
  source.addEventListener("state", (event) => state(JSON.parse(event.data)));
  for (const kind of ["end", "gone"]) {
    source.addEventListener(kind, () => {
      source.close();
      connection.textContent = word(`js.${kind}`);
      document.getElementById("stop")?.remove();
      // With its statement, and what to do if it did not end well.
      if (kind === "end") location.reload();
    });
  }
  source.addEventListener("error", () => {
    connection.textContent = word("js.lost");
    // A browser gives up after an answer that is no stream, for instance after a log-in ran out.
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  });
}

if (place.dataset.events) {
  draw(); // until the first round
  follow();
} else {
  fetch(place.dataset.points)
    .then((answer) => answer.json())
    .then((data) => take(data.points, true))
    .catch(() => { connection.textContent = word("js.lost"); });
}
