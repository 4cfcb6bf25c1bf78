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

function sentence(figure, kind, labels, data) {
  const parts = labels.map((label, index) => {
    const values = data[index + 1].filter((value) => value !== undefined);
    if (!values.length) return "";
    const said = word("js.from_to", {
      first: kind.format(values[0]),
      last: kind.format(values[values.length - 1]),
      low: kind.format(values.reduce((a, b) => Math.min(a, b))),
      high: kind.format(values.reduce((a, b) => Math.max(a, b))),
    });
    return label ? `${label}: ${said}` : said;
  }).filter(Boolean);
  return parts.length ? `${figure.dataset.title}. ${parts.join("; ")}` : "";
}

export class Chart {
  constructor(figure, labels) {
    this.figure = figure;
    this.labels = labels;
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
    const said = sentence(this.figure, this.kind, this.labels, this.data);
    this.figure.querySelector(".plot").setAttribute("aria-label", said || this.figure.dataset.title);
    this.figure.querySelector(".alternative").textContent = said || word(curves.some((curve) => curve.length) ? "js.no_numbers" : "js.no_round");
    // Not every run has its noise told in its statement, or a norm that adapts.
    this.figure.hidden = !said && ["noise", "clipping"].includes(this.figure.dataset.chart);
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
    const many = this.labels.length > 1;
    this.plot = new uPlot({
      width: this.width(),
      height: HEIGHT,
      scales: { x: { time: false } },
      legend: { live: false, show: many },
      cursor: { drag: { x: true, y: false } },
      axes: [
        axis(this.figure.dataset.x, (place) => number(place)),
        { ...axis(this.figure.dataset.y, this.kind.format), size: 64 },
      ],
      series: [
        {},
        ...this.labels.map((label, index) => ({
          label,
          stroke: colour(`--line-${(index % 6) + 1}`),
          width: 2,
          dash: DASHES[index % DASHES.length],
          spanGaps: true,
          points: { show: this.data[0].length < 3 },
        })),
      ],
    }, this.data, this.figure.querySelector(".plot"));
  }
}

export function charts(place, labels) {
  return [...place.querySelectorAll("[data-chart]")].map((figure) => new Chart(figure, labels));
}
