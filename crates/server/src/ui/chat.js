// The conversation: what was said, the answer that is on its way, and the field to write in.

import { Refusal, chat } from "./api.js";
import { button, copyButton, element, say } from "./dom.js";
import { show } from "./markdown.js";
import * as settings from "./settings.js";

const transcript = document.getElementById("transcript");
const welcome = document.getElementById("welcome");
const composer = document.getElementById("composer");
const prompt = document.getElementById("prompt");
const send = document.getElementById("send");
const stop = document.getElementById("stop");
const editing = document.getElementById("editing");
const newest = document.getElementById("newest");

/** Turns, oldest first: `{ role, content, node }`. */
let turns = [];
/** The turn that the field's text will replace. */
let edited = null;
/** Ends the answer that is on its way. */
let running = null;
let onRefused = () => {};
let onInvalid = () => {};
let modelName = "Model";

export function setModel(name) {
  modelName = name;
}

/** `refused` is called when the server wants a key, `invalid` with a setting that has a wrong value. */
export function start({ refused, invalid }) {
  onRefused = refused;
  onInvalid = invalid;
  composer.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("input", fit);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  stop.addEventListener("click", () => running?.abort());
  document.getElementById("cancel-edit").addEventListener("click", () => edit(null));
  document.getElementById("new-chat").addEventListener("click", clear);
  document.getElementById("examples").addEventListener("click", ({ target }) => {
    if (target.tagName !== "BUTTON") return;
    write(target.textContent);
    submit();
  });
  transcript.addEventListener("scroll", () => (newest.hidden = isAtEnd()));
  newest.addEventListener("click", toEnd);
}

function clear() {
  running?.abort();
  turns = [];
  edit(null);
  transcript.replaceChildren(welcome);
  say("New chat");
  prompt.focus();
}

function submit() {
  const content = prompt.value.trim();
  if (!content || running || isInvalid()) return;
  if (edited) cutFrom(edited);
  edit(null);
  add({ role: "user", content });
  answer();
}

function isInvalid() {
  const wrong = settings.firstInvalid();
  if (wrong) onInvalid(wrong);
  return wrong !== undefined;
}

/** Puts a turn's text into the field, to be sent again; `null` leaves the turn as it is. */
function edit(turn) {
  edited?.node.classList.remove("edited");
  edited = turn;
  edited?.node.classList.add("edited");
  editing.hidden = !turn;
  write(turn?.content ?? "");
  if (turn) prompt.focus();
}

function write(text) {
  prompt.value = text;
  fit();
}

/** Makes the field as high as its text. */
function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

/** Takes a turn and all later ones away. */
function cutFrom(turn) {
  const at = turns.indexOf(turn);
  turns.splice(at).forEach(({ node }) => node.remove());
}

function add(turn) {
  welcome.remove();
  const isUser = turn.role === "user";
  const name = isUser ? "You" : modelName;
  turn.body = element("div", { className: isUser ? "body plain" : "body" }, isUser ? [turn.content] : []);
  turn.stats = element("p", { className: "stats" });
  turn.actions = element("p", { className: "actions" });
  const foot = element("footer", {}, [turn.stats, turn.actions]);
  turn.node = element("article", { className: `turn ${turn.role}` }, [
    element("h2", { className: "role" }, [name]),
    turn.body,
    foot,
  ]);
  if (isUser) {
    turn.actions.append(
      copyButton(() => turn.content),
      button("Edit", () => running || edit(turn)),
    );
  }
  turns.push(turn);
  transcript.append(turn.node);
  toEnd();
  return turn;
}

/** Asks for the next turn and shows it as it comes. */
async function answer() {
  const asked = turns.map(({ role, content }) => ({ role, content }));
  const system = settings.systemPrompt();
  if (system) asked.unshift({ role: "system", content: system });
  const turn = add({ role: "assistant", content: "" });
  const progress = { begun: performance.now(), first: 0, last: 0, pieces: 0, usage: null, finish: null, id: "" };
  turn.node.classList.add("busy");
  setRunning(new AbortController());
  say("Answering");
  try {
    const stream = await chat({ messages: asked, ...settings.fields() }, running.signal);
    progress.id = stream.requestId;
    for await (const chunk of stream.chunks) take(turn, progress, chunk);
    say(turn.content || "The answer is empty.");
  } catch (error) {
    if (error.name === "AbortError") progress.finish = "stopped";
    else fail(turn, error);
  }
  setRunning(null);
  turn.node.classList.remove("busy");
  draw(turn, progress);
  finish(turn);
}

function setRunning(controller) {
  running = controller;
  send.hidden = Boolean(controller);
  stop.hidden = !controller;
}

function take(turn, progress, chunk) {
  const choice = chunk.choices[0];
  progress.usage = chunk.usage ?? progress.usage;
  progress.finish = choice?.finish_reason ?? progress.finish;
  const text = choice?.delta.content;
  if (!text) return;
  progress.last = performance.now();
  progress.first ||= progress.last;
  progress.pieces += 1;
  turn.content += text;
  // Once a frame: tokens come faster than eyes see.
  turn.frame ??= requestAnimationFrame(() => draw(turn, progress));
}

function draw(turn, progress) {
  if (turn.frame) cancelAnimationFrame(turn.frame);
  turn.frame = null;
  const follow = isAtEnd();
  show(turn.body, turn.content);
  turn.stats.title = progress.id && `Request ${progress.id}`;
  turn.stats.replaceChildren(...stats(progress).map((part) => element("span", {}, part)));
  if (follow) toEnd();
  newest.hidden = isAtEnd();
}

/** What an answer took, as lists of nodes. The numbers of tokens are the server's; times are those of this page. */
function stats({ begun, first, last, pieces, usage, finish }) {
  const bold = (text) => element("b", {}, [text]);
  const count = usage?.completion_tokens ?? pieces;
  const parts = [];
  if (count) parts.push([bold(count.toLocaleString("en")), usage ? " tokens" : " pieces"]);
  const seconds = (last - first) / 1000;
  if (seconds > 0 && count > 1) parts.push([bold(((count - 1) / seconds).toFixed(1)), " tokens/s"]);
  if (first) parts.push(["first token ", bold(`${(first - begun).toFixed(0)} ms`)]);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(["prompt ", bold(usage.prompt_tokens.toLocaleString("en")), ", cached ", bold(cached.toLocaleString("en"))]);
    const { accepted_prediction_tokens: accepted = 0, rejected_prediction_tokens: rejected = 0 } =
      usage.completion_tokens_details ?? {};
    const drafted = accepted + rejected;
    if (drafted) parts.push(["drafts ", bold(`${accepted.toLocaleString("en")} of ${drafted.toLocaleString("en")}`)]);
  }
  if (finish === "length") parts.push(["ended by the limit"]);
  if (finish === "stopped") parts.push(["stopped by you"]);
  return parts;
}

function fail(turn, error) {
  const parts = [element("p", {}, [error.message])];
  if (error.requestId) parts.push(element("p", { className: "id" }, [`Request ${error.requestId}`]));
  turn.error = element("div", { className: "error", role: "alert" }, parts);
  turn.body.after(turn.error);
  const isKey = error instanceof Refusal && error.status === 401;
  if (isKey) onRefused();
}

/** Gives the newest answer its buttons, and takes them from the one before. */
function finish(turn) {
  const again = () => {
    if (running || isInvalid()) return;
    cutFrom(turn);
    answer();
  };
  for (const { role, again } of turns) if (role === "assistant") again?.remove();
  turn.again = button(turn.error ? "Try again" : "Regenerate", again);
  if (turn.content) turn.actions.append(copyButton(() => turn.content));
  turn.actions.append(turn.again);
  if (isAtEnd() || turn.error) toEnd();
}

function isAtEnd() {
  return transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < 40;
}

function toEnd() {
  transcript.scrollTop = transcript.scrollHeight;
}
