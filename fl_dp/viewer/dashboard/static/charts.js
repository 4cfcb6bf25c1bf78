// Charts: uPlot in the page's colours, each with a sentence that says what it shows.
import { bound, number, percent, word } from "./words.js";

// Columns of a point, as `points` in shown_runs.py writes them.
export const ROUND = 0, SCORE = 1, LOSS = 2, EPSILON = 3, CLIPPING = 4, NOISE = 5;

const KINDS = {
  accuracy: { x: ROUND, y: SCORE, format: percent },
  r2: { x: ROUND, y: SCORE, format: number },
  loss: { x: ROUND, y: LOSS, format: number },
  epsilon: { x: ROUND, y: EPSILON, format: bound },
  "accuracy-epsilon": { x: EPSILON, y: SCORE, format: percent },
  "r2-epsilon": { x: EPSILON, y: SCORE, format: number },
  noise: { x: ROUND, y: NOISE, format: number },
  clipping: { x: ROUND, y: CLIPPING, format: number },
};
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [14, 4]]; // told apart without colour, too
const HEIGHT = 240;
const LEAST_SHARE = 0.1; // of an axis of shares: a few test rows must not look decisive
const ASIDE = ["noise", "clipping"]; // a constant one stands in the table of the plan

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Several curves on one axis of x: uPlot wants one list of places.
function aligned(curves, x, y) {
  const each = curves.map((points) => {
    const found = new Map();
    for (const point of points) {
      if (point[x] !== null && point[y] !== null) found.set(point[x], point[y]);
    }
    return found;
  });
  const places = [...new Set(each.flatMap((found) => [...found.keys()]))].sort((a, b) => a - b);
  return [places, ...each.map((found) => places.map((place) => found.get(place)))];
}

// The ends of an axis of shares, wide enough that small differences look small.
function shareRange(_, low, high) {
  if (low === null) return [0, 1];
  const missing = Math.max(LEAST_SHARE - (high - low), 0) / 2;
  const bottom = Math.max(low - missing, 0), top = Math.min(Math.max(high + missing, bottom + LEAST_SHARE), 1);
  const margin = 0.05 * (top - bottom);
  return [bottom - margin, top + margin];
}

function known(values) {
  return values.filter((value) => value !== undefined);
}

// What a curve does, or where the last points of several lie.
function sentence(kind, labels, data) {
  const curves = data.slice(1).map(known);
  if (labels.length > 1) {
    const ends = curves
      .map((values, index) => ({ label: labels[index], last: values[values.length - 1] }))
      .filter((end) => end.last !== undefined)
      .sort((a, b) => a.last - b.last);
    if (!ends.length) return "";
    const [lowest, highest] = [ends[0], ends[ends.length - 1]];
    return word("js.ends", {
      low: kind.format(lowest.last), lowest: lowest.label,
      high: kind.format(highest.last), highest: highest.label,
    });
  }
  const [values] = curves;
  if (!values.length) return "";
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const said = {
    first: kind.format(values[0]), last: kind.format(values[values.length - 1]),
    low: kind.format(low), high: kind.format(high),
  };
  if (said.low === said.high) return word("js.constant", said);
  const ends = [said.first, said.last];
  const key = ends.includes(said.low) && ends.includes(said.high) ? "js.from_to" : "js.within";
  return word(key, said);
}

export class Chart {
  // `looks` tells which colour each curve has; without it each has its own.
  constructor(figure, labels, looks) {
    this.figure = figure;
    this.labels = labels;
    this.looks = looks ?? labels.map((_, index) => index);
    this.kind = KINDS[figure.dataset.chart];
    this.plot = null;
    this.data = null;
    new ResizeObserver(() => this.resize()).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
    addEventListener("beforeprint", () => this.resize());
  }

  // Shows curves, each a list of points. A chart without any number says so.
  show(curves) {
    this.data = aligned(curves, this.kind.x, this.kind.y);
    const said = sentence(this.kind, this.labels, this.data);
    const { title, chart } = this.figure.dataset;
    this.figure.querySelector(".plot").setAttribute("aria-label", said ? `${title}. ${said}` : title);
    const begun = curves.some((curve) => curve.length);
    this.figure.querySelector(".alternative").textContent = said || word(begun ? "js.no_numbers" : "js.no_round");
    const different = new Set(known(this.data.slice(1).flat())).size;
    // Without privacy there is no epsilon, and not every run has its noise told.
    const empty = begun && !said && this.kind.y !== SCORE && this.kind.y !== LOSS;
    const nowhere = begun && !said && this.kind.x === EPSILON;
    this.figure.hidden = empty || nowhere || (ASIDE.includes(chart) && different < 2);
    if (this.plot) this.plot.setData(this.data);
    else this.build();
  }

  width() {
    return Math.max(this.figure.clientWidth - 28, 200);
  }

  resize() {
    const width = this.width();
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
  }

  build() {
    if (!this.data) return;
    if (this.plot) this.plot.destroy();
    this.plot = null;
    if (!this.data[0].length) return;
    const ink = colour("--soft"), line = colour("--line");
    const axis = (label, format) => ({
      label, stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line },
      values: (_, places) => places.map((place) => (place === null ? "" : format(place))),
    });
    this.plot = new uPlot({
      width: this.width(),
      height: HEIGHT,
      scales: { x: { time: false }, y: this.kind.format === percent ? { range: shareRange } : {} },
      legend: { show: false }, // a comparison has one for all its charts
      cursor: { drag: { x: true, y: false } },
      axes: [
        axis(this.figure.dataset.x, (place) => number(place)),
        { ...axis(this.figure.dataset.y, this.kind.format), size: 64 },
      ],
      series: [
        {},
        ...this.labels.map((label, index) => ({
          label,
          stroke: colour(`--line-${(this.looks[index] % 6) + 1}`),
          width: 2,
          dash: DASHES[this.looks[index] % DASHES.length],
          spanGaps: true,
          points: { show: this.data[0].length < 3 },
        })),
      ],
    }, this.data, this.figure.querySelector(".plot"));
  }
}

export function charts(place, labels, looks) {
  return [...place.querySelectorAll("[data-chart]")].map((figure) => new Chart(figure, labels, looks));
}
