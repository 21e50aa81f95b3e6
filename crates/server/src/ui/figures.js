// The live figures: /metrics once a second while the page is seen, as numbers, curves and a bar.

import { Refusal, metrics } from "./api.js";
import { element, svg } from "./dom.js";
import { SECTIONS, format, parse } from "./metrics.js";

const SECOND = 1000;
/** A server that does not answer is asked less often. */
const PATIENCE = 5 * SECOND;
/** Points of a curve: a minute. */
const POINTS = 60;
const HEIGHT = 24;

const panel = document.getElementById("engine");
const link = document.getElementById("link");

let drawn = [];
let before = null;
let timer = 0;
/** The look that is on its way: what an older one brings is not shown. */
let latest = null;
let onRefused = () => {};

/** Builds the panel and begins to watch; `refused` is called when the server wants a key. */
export function start(refused) {
  onRefused = refused;
  drawn = SECTIONS.map(section);
  panel.append(...drawn.map(({ node }) => node));
  document.addEventListener("visibilitychange", watch);
  watch();
}

/** Begins anew: after the page was hidden, and when the key has changed. */
export function watch() {
  clearTimeout(timer);
  before = null;
  latest = null;
  if (document.hidden) setLink("paused", "paused");
  else look();
}

async function look() {
  const own = {};
  latest = own;
  let wait = SECOND;
  try {
    const text = await metrics();
    if (latest !== own) return;
    const now = { values: parse(text), seconds: performance.now() / 1000 };
    drawn.forEach((each) => each.update(now, before));
    before = now;
    setLink("live", "live");
  } catch (error) {
    if (latest !== own) return;
    before = null;
    const isKey = error instanceof Refusal && error.status === 401;
    setLink(isKey ? "key" : "lost", isKey ? "needs a key" : error.status ? `status ${error.status}` : "unreachable");
    if (isKey) return onRefused();
    wait = PATIENCE;
  }
  if (!document.hidden) timer = setTimeout(look, wait);
}

function setLink(state, words) {
  link.dataset.state = state;
  if (link.textContent !== words) link.textContent = words;
}

/** A section shows when one of its figures can be had. */
function section({ title, figures }) {
  const rows = figures.map((figure) => (figure.bar ? bar(figure) : row(figure)));
  const node = element("section", { hidden: true }, [
    element("h2", {}, [title]),
    ...rows.map((each) => each.node),
  ]);
  const update = (now, before) => {
    rows.forEach((each, index) => {
      each.node.hidden = !figures[index].needs.every((name) => now.values.has(name));
      if (!each.node.hidden) each.update(now, before);
    });
    node.hidden = rows.every((each) => each.node.hidden);
  };
  return { node, update };
}

function row(figure) {
  const number = element("output", {}, ["–"]);
  const unit = element("span", { className: "unit" }, [figure.unit ?? ""]);
  const value = element("span", { className: "value" }, [number, unit]);
  const curve = figure.plain ? null : sparkline();
  const label = element("span", { className: "label" }, [figure.label]);
  const parts = curve ? [label, curve.node, value] : [label, value];
  const node = element("div", { className: curve ? "figure" : "figure plain" }, parts);
  node.dataset.figure = figure.needs[0];
  const update = (now, before) => {
    const current = figure.value(now, before);
    number.textContent = format(current, figure);
    curve?.add(current ?? 0);
  };
  return { node, update };
}

/** A minute of one figure, the newest at the right; the highest point fills the height. */
function sparkline() {
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const node = svg("svg", {
    class: "spark",
    viewBox: `0 0 ${POINTS - 1} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  node.append(area, line);
  const points = [];
  const add = (value) => {
    points.push(value);
    if (points.length > POINTS) points.shift();
    const most = Math.max(...points) || 1;
    const first = POINTS - points.length;
    const y = (value) => (HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1);
    const path = points.map((value, index) => `${first + index} ${y(value)}`).join("L");
    line.setAttribute("d", `M${path}`);
    area.setAttribute("d", `M${first} ${HEIGHT}L${path}L${POINTS - 1} ${HEIGHT}Z`);
  };
  return { node, add };
}

/** Parts of a whole, side by side, with their numbers in words below. */
function bar(figure) {
  const rects = figure.bar.map(() => svg("rect", { y: 0, height: 1 }));
  const node = svg("svg", { class: "bar-of", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  node.append(...rects);
  const words = element("p", { className: "legend" });
  const update = ({ values }) => {
    const whole = values.get(figure.of);
    let x = 0;
    const parts = figure.bar.map(({ name, metric }, index) => {
      const count = values.get(metric);
      const width = whole ? count / whole : 0;
      rects[index].setAttribute("x", x);
      rects[index].setAttribute("width", width);
      x += width;
      return element("span", {}, [element("b", {}, [format(count, { whole: true })]), ` ${name}`]);
    });
    parts.push(element("span", {}, ["of ", element("b", {}, [format(whole, { whole: true })]), ` ${figure.unit}`]));
    words.replaceChildren(...parts);
  };
  const box = element("div", { className: "parts" }, [node, words]);
  box.dataset.figure = figure.needs[0];
  return { node: box, update };
}
