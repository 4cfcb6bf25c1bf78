// Several runs on the same axes.
import { charts } from "./charts.js";
import { word } from "./words.js";

const place = document.getElementById("comparison");

async function show() {
  const runs = [...place.querySelectorAll("[data-run]")];
  const shown = charts(place, runs.map((run) => run.dataset.label));
  const answers = await Promise.all(runs.map((run) => fetch(run.dataset.run)));
  const found = await Promise.all(answers.map((answer) => answer.json()));
  for (const chart of shown) chart.show(found.map((each) => each.points));
}

if (place) {
  show().catch(() => {
    for (const text of place.querySelectorAll(".alternative")) text.textContent = word("js.lost");
  });
}
