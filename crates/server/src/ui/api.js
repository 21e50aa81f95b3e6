// What the page asks of the server. Addresses are relative, so that the page works behind a proxy's prefix too.

const KEY = "foretoken.key";

/** A refusal or failure, in words. */
export class Refusal extends Error {
  constructor(message, { status = 0, requestId = "", code = null } = {}) {
    super(message);
    Object.assign(this, { status, requestId, code });
  }
}

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Sends a request. Throws a Refusal for every answer that is not a success. */
async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body) headers["Content-Type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  const requestId = response.headers.get("x-request-id") ?? "";
  const error = await response.json().then((body) => body.error, () => null);
  const message = error?.message ?? `The server answered with status ${status}.`;
  return new Refusal(message, { status, requestId, code: error?.code ?? null });
}

export async function models() {
  const list = await (await ask("v1/models")).json();
  return list.data;
}

export async function metrics() {
  return (await ask("metrics")).text();
}

/** Starts a streamed chat: its request id, and its chunks as an async iterator. */
export async function chat(body, signal) {
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await ask("v1/chat/completions", { body: streamed, signal });
  const requestId = response.headers.get("x-request-id") ?? "";
  return { requestId, chunks: chunks(response.body, requestId) };
}

async function* chunks(body, requestId) {
  try {
    for await (const data of events(pieces(body))) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refusal(chunk.error.message, { requestId, code: chunk.error.code });
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Refusal || error.name === "AbortError") throw error;
  }
  throw new Refusal("The connection to the server broke off.", { requestId });
}

/** Not every browser can iterate a stream. */
async function* pieces(body) {
  const reader = body.getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The data of server-sent events from an async iterable of bytes, cut anywhere. */
export async function* events(bytes) {
  const decoder = new TextDecoder();
  let line = "";
  let data = [];
  for await (const piece of bytes) {
    const lines = (line + decoder.decode(piece, { stream: true })).split("\n");
    line = lines.pop();
    for (const ended of lines) {
      const text = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
      if (text.startsWith("data:")) data.push(text.slice(text[5] === " " ? 6 : 5));
      if (text === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}
