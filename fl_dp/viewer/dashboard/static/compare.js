// Several runs on the same axes: runs that differ in their seed alone have one colour.
import { charts } from "./charts.js";
import { word } from "./words.js";

const place = document.getElementById("comparison");

async function show() {
  const runs = [...place.querySelectorAll("[data-run]")];
  const looks = runs.map((run) => Number(run.dataset.group));
  const shown = charts(place, runs.map((run) => run.dataset.label), looks);
  const answers = await Promise.all(runs.map((run) => fetch(run.dataset.run)));
  const found = await Promise.all(answers.map((answer) => answer.json()));
  for (const chart of shown) chart.show(found.map((each) => each.points));
}

if (place) {
  show().catch(() => {
    for (const text of place.querySelectorAll(".alternative")) text.textContent = word("js.lost");
  });
}
