// A run that was started and has no folder yet: look again until it has, or has ended.
const PAUSE = 2000;

async function look() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const text = await answer.text();
    const ended = !text.includes("/static/started.js");
    if (answer.redirected) location.replace(answer.url);
    else if (answer.ok && ended) location.reload();
  } catch {
    // The dashboard does not answer: the page stays as it is, and asks again.
  }
  setTimeout(look, PAUSE);
}

setTimeout(look, PAUSE);
