// Several runs on the same axes: runs that differ in their seed alone are one curve with a band.
import { charts, ROUND } from "./charts.js";
import { word } from "./words.js";

const place = document.getElementById("comparison");

// One number of several points; null where none has it.
function of(points, column, reduce) {
  const values = points.map((point) => point[column]).filter((value) => value !== null);
  return values.length ? reduce(values) : null;
}

const REDUCE = {
  mean: (values) => values.reduce((sum, value) => sum + value, 0) / values.length,
  low: (values) => Math.min(...values),
  high: (values) => Math.max(...values),
};

// Mean, lowest and highest of runs, round by round; a run alone has no band.
function spread(runs) {
  if (runs.length === 1) return { mean: runs[0] };
  const rounds = new Map();
  for (const point of runs.flat()) {
    if (!rounds.has(point[ROUND])) rounds.set(point[ROUND], []);
    rounds.get(point[ROUND]).push(point);
  }
  const ordered = [...rounds.entries()].sort(([a], [b]) => a - b).map(([, points]) => points);
  const edge = (reduce) => ordered.map((points) => points[0].map((_, column) => of(points, column, reduce)));
  return { mean: edge(REDUCE.mean), low: edge(REDUCE.low), high: edge(REDUCE.high) };
}

async function show() {
  const labels = [...place.querySelectorAll("[data-name]")].map((row) => row.dataset.name);
  const runs = [...place.querySelectorAll("[data-run]")];
  const shown = charts(place, labels);
  const answers = await Promise.all(runs.map((run) => fetch(run.dataset.run)));
  const found = await Promise.all(answers.map((answer) => answer.json()));
  const curves = labels.map((_, row) => spread(
    found.filter((_, index) => Number(runs[index].dataset.row) === row).map((answer) => answer.points),
  ));
  for (const chart of shown) chart.show(curves);
}

if (place) {
  show().catch(() => {
    for (const text of place.querySelectorAll(".alternative")) text.textContent = word("js.lost");
  });
}
