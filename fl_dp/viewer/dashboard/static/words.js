// Words, numbers and times in the page's language.
const texts = JSON.parse(document.getElementById("words").textContent);
const language = document.documentElement.lang;

export function word(key, values = {}) {
  return texts[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  return new Intl.NumberFormat(language, { maximumSignificantDigits: digits }).format(value);
}

// An upper bound such as epsilon is rounded up: less would be another promise.
export function bound(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const form = { maximumSignificantDigits: digits, roundingMode: "ceil" };
  return new Intl.NumberFormat(language, form).format(value * (1 - 1e-12));
}

export function percent(value) {
  if (value === null || value === undefined) return "–";
  const form = { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 };
  return new Intl.NumberFormat(language, form).format(value);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return word("js.seconds", { n: Math.round(seconds) });
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return word("js.minutes", { n: minutes });
  const rest = String(minutes % 60).padStart(2, "0");
  return word("js.hours", { n: Math.floor(minutes / 60), minutes: rest });
}
