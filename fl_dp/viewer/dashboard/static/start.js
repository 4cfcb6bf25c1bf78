// The form: empty fields show what they stand for beside the parts that are chosen.
const form = document.getElementById("asked");
const parts = form.dataset.parts.split(" ");
let asked = 0;

async function show() {
  const mine = (asked += 1);
  const address = new URL(form.dataset.defaults, location.href);
  const filled = new FormData(form);
  for (const part of parts) {
    if (filled.get(part)) address.searchParams.set(part, filled.get(part));
  }
  const answer = await fetch(address);
  if (!answer.ok) return;
  const shown = await answer.json();
  if (mine !== asked) return; // another part was chosen meanwhile
  for (const [name, text] of Object.entries(shown)) {
    const field = document.getElementById(`f-${name}`);
    if (field instanceof HTMLInputElement) field.placeholder = text;
    else if (field instanceof HTMLSelectElement) field.options[0].textContent = text;
  }
}

form.addEventListener("change", (event) => {
  if (parts.includes(event.target.name)) show();
});
