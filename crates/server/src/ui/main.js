// Puts the page together: panes, the model's name, the key.

import { apiKey, models, setApiKey } from "./api.js";
import * as chat from "./chat.js";
import { copyButton } from "./dom.js";
import * as figures from "./figures.js";
import * as settings from "./settings.js";

const key = document.getElementById("api-key");
const keyBox = document.getElementById("key-box");
const name = document.getElementById("model");
const panes = [...document.querySelectorAll("nav button")];

/** Where there is room for one pane only: shows that one. */
function showPane(pane) {
  document.body.dataset.pane = pane;
  for (const button of panes) button.setAttribute("aria-pressed", String(button.dataset.pane === pane));
}

/** The server wants a key, or another one. */
function askForKey() {
  keyBox.hidden = false;
  showPane("settings");
  key.focus();
}

async function showModel() {
  try {
    const [model] = await models();
    name.textContent = model.id;
    document.title = `${model.id} · Foretoken`;
    chat.setModel(model.id);
  } catch {
    // The figures say what is wrong with the server.
    name.textContent = "";
  }
}

function start() {
  for (const button of panes) button.addEventListener("click", () => showPane(button.dataset.pane));
  const url = new URL("v1", document.baseURI).href;
  document.getElementById("base-url").textContent = url;
  document.getElementById("copy-url").replaceWith(copyButton(() => url));
  key.value = apiKey();
  keyBox.hidden = key.value === "";
  key.addEventListener("change", () => {
    setApiKey(key.value.trim());
    showModel();
    figures.watch();
  });
  settings.start();
  chat.start({
    refused: askForKey,
    invalid: (input) => {
      showPane("settings");
      input.reportValidity();
    },
  });
  showModel();
  figures.start(askForKey);
}

start();
