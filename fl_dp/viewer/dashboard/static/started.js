// Work that goes on: look again, and show the page anew when it has got further or has ended.
const PAUSE = 2000;
const SEEN = /data-seen="[^"]*"/;

async function look() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const text = await answer.text();
    const shown = document.querySelector("[data-seen]");
    const [seen] = text.match(SEEN) ?? [""];
    if (answer.redirected) location.replace(answer.url);
    else if (answer.ok && seen !== (shown ? `data-seen="${shown.dataset.seen}"` : "")) location.reload();
  } catch {
    // The dashboard does not answer: the page stays as it is, and asks again.
  }
  setTimeout(look, PAUSE);
}

setTimeout(look, PAUSE);
