"use strict";
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const line = (at) => colour(`--c${at % 6}`);
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 4]];
  const plots = [];

  // Curves have their own places along the axis; the library wants one list for all.
  function joined(chart) {
    const tables = chart.curves.map((each) =>
      each.low ? [each.x, each.mean, each.low, each.high] : [each.x, each.mean]);
    if (chart.line !== null) {
      const ends = chart.curves.flatMap((each) => [each.x[0], each.x[each.x.length - 1]]);
      const low = Math.min(...ends), high = Math.max(...ends);
      tables.push(low < high ? [[low, high], [chart.line, chart.line]] : [[low], [chart.line]]);
    }
    return tables.length > 1 ? uPlot.join(tables) : tables[0];
  }

  // The ends of an axis of shares, wide enough that small differences look small.
  function shareRange(least) {
    return (_, low, high) => {
      if (low === null) return [0, 1];
      const missing = Math.max(least - (high - low), 0) / 2;
      const bottom = Math.max(low - missing, 0);
      const top = Math.min(Math.max(high + missing, bottom + least), 1);
      const margin = 0.05 * (top - bottom);
      return [bottom - margin, top + margin];
    };
  }

  function options(chart, width) {
    const series = [{ label: chart.x }], bands = [];
    chart.curves.forEach((each) => {
      const at = each.look;
      const points = { show: each.x.length < 40, size: 5 };
      const dash = dashes[(at + Math.floor(at / 6)) % dashes.length];
      series.push({ label: each.name, stroke: () => line(at), width: 2, dash, points, spanGaps: true });
      if (each.low) {
        const edge = { stroke: () => line(at) + "66", width: 1, points: { show: false }, spanGaps: true, class: "edge" };
        series.push({ ...edge, label: `${each.name}, lowest` }, { ...edge, label: `${each.name}, highest` });
        bands.push({ series: [series.length - 1, series.length - 2], fill: () => line(at) + "33" });
      }
    });
    if (chart.line !== null) {
      series.push({ label: "", stroke: () => colour("--quiet"), dash: [4, 4], width: 1.5,
        points: { show: false }, spanGaps: true });
    }
    const axis = (label) => ({ label, stroke: () => colour("--ink"), labelSize: 26,
      grid: { stroke: () => colour("--rule"), width: 1 }, ticks: { stroke: () => colour("--rule"), width: 1 } });
    return { width, height: 280, series, bands, scales: { x: { time: false }, y: chart.least === null ? {} : { range: shareRange(chart.least) } },
      axes: [axis(chart.x), { ...axis(chart.y), size: 62 }], legend: { show: false }, // the page has one for all its charts
      cursor: { drag: { x: true, y: false } } };
  }

  for (const place of document.querySelectorAll("[data-chart]")) {
    const chart = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    const plot = new uPlot(options(chart, Math.max(place.clientWidth, 240)), joined(chart), place);
    plots.push([plot, place]);
  }

  // Colours are asked for at each drawing, so that dark, light and paper have their own.
  const redraw = () => plots.forEach(([plot]) => plot.redraw(false, true));
  const resize = () => plots.forEach(([plot, place]) =>
    plot.setSize({ width: Math.max(place.clientWidth, 240), height: 280 }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", () => { resize(); redraw(); });
  addEventListener("beforeprint", () => { resize(); redraw(); });
  addEventListener("afterprint", () => { resize(); redraw(); });
  addEventListener("resize", resize);
})();
