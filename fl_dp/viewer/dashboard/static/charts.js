// Charts: uPlot in the page's colours, each with a sentence that says what it shows.
import { bound, number, percent, word } from "./words.js";

// Columns of a point, as `points` in shown_runs.py writes them.
export const ROUND = 0, SCORE = 1, LOSS = 2, EPSILON = 3, CLIPPING = 4, NOISE = 5;

const KINDS = {
  accuracy: { x: ROUND, y: SCORE, format: percent },
  auc: { x: ROUND, y: SCORE, format: number },
  r2: { x: ROUND, y: SCORE, format: number },
  loss: { x: ROUND, y: LOSS, format: number },
  epsilon: { x: ROUND, y: EPSILON, format: bound },
  "accuracy-epsilon": { x: EPSILON, y: SCORE, format: percent },
  "auc-epsilon": { x: EPSILON, y: SCORE, format: number },
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

// Values of a curve by their places: of its mean, or of an edge of its band.
function placed(curve, edge, x, y) {
  const found = new Map();
  curve.mean.forEach((point, index) => {
    const value = edge[index][y];
    if (point[x] !== null && value !== null) found.set(point[x], value);
  });
  return found;
}

// Several curves on one axis of x: uPlot wants one list of places.
function aligned(curves, x, y) {
  const lines = curves.flatMap((curve) => [
    placed(curve, curve.mean, x, y),
    ...(curve.low ? [placed(curve, curve.low, x, y), placed(curve, curve.high, x, y)] : []),
  ]);
  const places = [...new Set(lines.flatMap((line) => [...line.keys()]))].sort((a, b) => a - b);
  return [places, ...lines.map((line) => places.map((place) => line.get(place)))];
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
function sentence(kind, labels, means) {
  const curves = means.map(known);
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
  constructor(figure, labels) {
    this.figure = figure;
    // Epsilons of another promise have a chart of their own.
    const rows = figure.dataset.rows ? figure.dataset.rows.split(" ").map(Number) : null;
    this.rows = rows ?? labels.map((_, index) => index);
    this.labels = this.rows.map((row) => labels[row]);
    this.kind = KINDS[figure.dataset.chart];
    this.plot = null;
    this.data = null;
    new ResizeObserver(() => this.resize()).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
    addEventListener("beforeprint", () => this.resize());
  }

  // Shows curves: lists of points, of the mean and of the edges of its band, if it has one. A chart
  // without any number says so.
  show(all) {
    const curves = this.rows.map((row) => all[row]);
    this.curves = curves;
    this.data = aligned(curves, this.kind.x, this.kind.y);
    let column = 1;
    const means = curves.map((curve) => {
      const mean = this.data[column];
      column += curve.low ? 3 : 1;
      return mean;
    });
    const said = sentence(this.kind, this.labels, means);
    const { title, chart } = this.figure.dataset;
    this.figure.querySelector(".plot").setAttribute("aria-label", said ? `${title}. ${said}` : title);
    const begun = curves.some((curve) => curve.mean.length);
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
    let column = 1;
    const drawn = this.curves.map((curve, index) => {
      const look = this.rows[index];
      const stroke = colour(`--line-${(look % 6) + 1}`), points = { show: this.data[0].length < 3 };
      const mean = { label: this.labels[index], stroke, width: 2, dash: DASHES[look % DASHES.length], spanGaps: true, points };
      if (!curve.low) {
        column += 1;
        return { series: [mean], bands: [] };
      }
      const edge = { stroke: `${stroke}66`, width: 1, spanGaps: true, points: { show: false } };
      column += 3;
      return { series: [mean, edge, edge], bands: [{ series: [column - 1, column - 2], fill: `${stroke}33` }] };
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
      series: [{}, ...drawn.flatMap((curve) => curve.series)],
      bands: drawn.flatMap((curve) => curve.bands),
    }, this.data, this.figure.querySelector(".plot"));
  }
}

export function charts(place, labels) {
  return [...place.querySelectorAll("[data-chart]")].map((figure) => new Chart(figure, labels));
}
