// Answers that follow a schema, and tools, through the openai package of npm.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.env.FORETOKEN_URL}/v1`, apiKey: "any", maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;
const Paint = z.object({ colour: z.enum(["red", "blue"]), litres: z.number().int().min(1).max(20), glossy: z.boolean() });
const tools = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city",
    parameters: {
      type: "object",
      properties: { city: { enum: ["Oslo", "Lima"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
}];
const asked = (content, more) => ({ model, messages: [{ role: "user", content }], seed: 3, max_tokens: 200, ...more });
const weather = asked("How is the weather?", { tools, tool_choice: "required", parallel_tool_calls: false });

test("a schema is followed", async () => {
  const answer = await client.chat.completions.parse(
    asked("Describe the paint.", { response_format: zodResponseFormat(Paint, "paint") }),
  );
  Paint.parse(answer.choices[0].message.parsed);
  assert.equal(answer.choices[0].finish_reason, "stop");
});

test("a tool is called, whole and streamed, and answers", async () => {
  const whole = await client.chat.completions.create(weather);
  const { message, finish_reason } = whole.choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.tool_calls.length, 1);
  const call = message.tool_calls[0].function;
  assert.equal(call.name, "get_weather");
  assert.ok(["Oslo", "Lima"].includes(JSON.parse(call.arguments).city));
  const streamed = await client.chat.completions.stream(weather).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.arguments, call.arguments);
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "12 degrees, rain" };
  const more = { tools, tool_choice: "none", max_tokens: 8 };
  const messages = [...weather.messages, message, result];
  assert.ok((await client.chat.completions.create({ ...asked("", more), messages })).choices[0].message.content);
});
