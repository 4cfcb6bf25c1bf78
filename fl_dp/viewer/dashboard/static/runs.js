// The list: how many runs are chosen for a comparison, and no more than fit.
import { word } from "./words.js";

const chosen = document.getElementById("chosen");
const most = Number(chosen.dataset.most);

chosen.addEventListener("change", () => {
  const boxes = [...chosen.querySelectorAll("input[name=run]")];
  const n = boxes.filter((box) => box.checked).length;
  for (const box of boxes) box.disabled = !box.checked && n >= most;
  document.getElementById("chosen-count").textContent = word("js.chosen", { n, most });
});
