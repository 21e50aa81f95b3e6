// The form of settings: kept in this browser, and turned into the fields of a request.

const STORE = "foretoken.settings";

const form = document.getElementById("settings");
const system = document.getElementById("system");
const inputs = [...form.querySelectorAll("[data-field], [data-lines], [data-setting]")];

function nameOf({ dataset }) {
  return dataset.field ?? dataset.lines ?? dataset.setting;
}

function load() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

function save() {
  const filled = inputs.filter((input) => input.value !== "");
  localStorage.setItem(STORE, JSON.stringify(Object.fromEntries(filled.map((input) => [nameOf(input), input.value]))));
}

/** Fills the form with what was kept, and keeps what changes. */
export function start() {
  const kept = load();
  for (const input of inputs) input.value = kept[nameOf(input)] ?? "";
  form.addEventListener("input", save);
  // The fields are emptied after the event.
  form.addEventListener("reset", () => setTimeout(save));
  form.addEventListener("submit", (event) => event.preventDefault());
}

/** The system prompt, or "". */
export function systemPrompt() {
  return system.value.trim();
}

/** The first field whose value the server would refuse, or undefined. */
export function firstInvalid() {
  return inputs.find((input) => !input.checkValidity());
}

/** What is filled in, as fields of a request. */
export function fields() {
  const body = {};
  for (const input of inputs.filter((input) => input.value !== "")) {
    const { field, lines } = input.dataset;
    if (field === "seed") body.seed = seed(input.value);
    else if (field) body[field] = input.valueAsNumber;
    else if (lines) body[lines] = input.value.split("\n").filter((line) => line !== "");
  }
  return body;
}

/** Seeds have 64 bits, more than a number has here: one that would be rounded is refused rather than changed. */
function seed(text) {
  const number = Number(text);
  if (Number.isSafeInteger(number)) return number;
  throw new RangeError(`The seed ${text} is too large for this page: use at most ${Number.MAX_SAFE_INTEGER}.`);
}
