// The server through the openai package of npm. `tests/clients/run` starts the servers and says where they are.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const url = process.env.FORETOKEN_URL;
// A retry would hide a refusal.
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;

const asked = (more) => ({
  model,
  messages: [{ role: "user", content: "Name three colours." }],
  seed: 7,
  max_tokens: 12,
  ...more,
});
const chat = (more, options) => client.chat.completions.create(asked(more), options);

/** The figures of /metrics by name and labels. */
async function figures() {
  const text = await (await fetch(`${url}/metrics`)).text();
  const lines = text.split("\n").filter((line) => line && !line.startsWith("#"));
  return Object.fromEntries(lines.map((line) => [line.replace(/ [^ ]*$/, ""), Number(line.split(" ").at(-1))]));
}

/** Waits until nothing runs; a server that never gets there fails the test. */
async function idle() {
  for (let tries = 0; tries < 600; tries++) {
    const now = await figures();
    if (now.foretoken_requests_running + now.foretoken_requests_waiting + now.foretoken_kv_pages_used === 0) return now;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail("the server does not come to rest");
}

/** The texts of a stream by choice, and its chunks. */
async function collected(stream) {
  const [texts, chunks] = [[], []];
  for await (const chunk of stream) {
    chunks.push(chunk);
    for (const { index, delta } of chunk.choices) texts[index] = (texts[index] ?? "") + (delta.content ?? "");
  }
  return { texts, chunks };
}

test("a chat is answered, and streamed as the same text", async () => {
  const whole = await chat();
  assert.equal(whole.object, "chat.completion");
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 12);
  const { texts, chunks } = await collected(await chat({ stream: true, stream_options: { include_usage: true } }));
  assert.deepEqual(texts, [whole.choices[0].message.content]);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, 12);
});

test("the client's stream helper puts the answer together", async () => {
  const stream = client.chat.completions.stream(asked());
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, (await chat()).choices[0].message.content);
});

test("choices are independent, and the first is that of n = 1", async () => {
  const texts = (await chat({ n: 3 })).choices.map((choice) => choice.message.content);
  assert.equal(new Set(texts).size, 3);
  assert.equal((await chat()).choices[0].message.content, texts[0]);
  assert.deepEqual((await collected(await chat({ n: 3, stream: true }))).texts, texts);
});

test("log-probabilities", async () => {
  const choice = (await chat({ logprobs: true, top_logprobs: 3, temperature: 0 })).choices[0];
  assert.equal(choice.logprobs.content.length, 12);
  const bytes = choice.logprobs.content.flatMap((entry) => entry.bytes);
  assert.equal(Buffer.from(bytes).toString(), choice.message.content);
  for (const entry of choice.logprobs.content) {
    assert.equal(entry.top_logprobs.length, 3);
    assert.equal(entry.top_logprobs[0].token, entry.token);
  }
});

test("stop, and a completion", async () => {
  const whole = await client.completions.create({ model, prompt: "Once upon a time", temperature: 0, max_tokens: 8 });
  const { text } = whole.choices[0];
  const stop = text.slice(4, 7);
  const stopped = await client.completions.create({
    model, prompt: "Once upon a time", temperature: 0, max_tokens: 8, stop,
  });
  assert.equal(stopped.choices[0].text, text.slice(0, text.indexOf(stop)));
  assert.equal(stopped.choices[0].finish_reason, "stop");
});

test("16 answers at once are those asked for one by one", async () => {
  const kinds = Array.from({ length: 16 }, (_, i) => ({
    messages: [{ role: "user", content: `Tell me about ${i}. `.repeat(i + 1) }],
    seed: i,
    temperature: [0, 0.7, 1, 1.5][i % 4],
    max_tokens: 6 + i,
  }));
  const text = async (kind) => (await chat(kind)).choices[0].message.content;
  const alone = [];
  for (const kind of kinds) alone.push(await text(kind));
  assert.deepEqual(await Promise.all(kinds.map(text)), alone);
});

test("errors are the client's classes, with param and code", async () => {
  const refused = async (promise, kind, fields) => {
    const error = await promise.then(() => assert.fail("not refused"), (error) => error);
    assert.ok(error instanceof kind, `${error}`);
    for (const [name, value] of Object.entries(fields)) assert.equal(error[name], value);
    assert.ok(error.requestID);
  };
  await refused(chat({ model: "gpt-4" }), OpenAI.NotFoundError, { status: 404, param: "model", code: "model_not_found" });
  await refused(chat({ top_p: 7 }), OpenAI.BadRequestError, { status: 400, param: "top_p" });
  await refused(chat({ new_field: 1 }), OpenAI.BadRequestError, { param: "new_field", code: "unsupported_parameter" });
  const strict = new OpenAI({ baseURL: `${process.env.FORETOKEN_STRICT_URL}/v1`, apiKey: "wrong", maxRetries: 0 });
  await refused(strict.models.list(), OpenAI.AuthenticationError, { status: 401, code: "invalid_api_key" });
});

test("an abort frees what the answer held, streamed or not", async () => {
  const before = (await idle()).foretoken_generation_tokens_total;
  const stream = await chat({ stream: true, max_tokens: 4000, ignore_eos: true });
  let seen = 0;
  for await (const _ of stream) if (++seen === 4) break;
  await idle();
  const controller = new AbortController();
  const whole = chat({ max_tokens: 4000, ignore_eos: true }, { signal: controller.signal });
  while ((await figures()).foretoken_requests_running === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  controller.abort();
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  const after = (await idle()).foretoken_generation_tokens_total;
  assert.ok(after - before < 8000, "computed to the end for nobody");
});
