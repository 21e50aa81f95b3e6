// What the figures of /metrics mean. To add a figure, add a line to SECTIONS: it shows as soon as the server has the
// metrics that it needs.

/** Values by name of all lines without labels, from OpenMetrics text. */
export function parse(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const [name, value] = line.split(" ");
    if (value !== undefined && !name.startsWith("#") && !name.includes("{")) values.set(name, Number(value));
  }
  return values;
}

/** How much a counter grew between two samples; null where it cannot be told, as after a restart. */
function growth(name, now, before) {
  const grown = before ? now.values.get(name) - before.values.get(name) : NaN;
  return grown >= 0 ? grown : null;
}

function rate(name) {
  const value = (now, before) => {
    const grown = growth(name, now, before);
    return grown === null ? null : grown / (now.seconds - before.seconds);
  };
  return { needs: [name], value };
}

/** Growth of one counter for each growth of another, and `more`; null while the other stands still. */
function each(name, per, scale = 1, more = 0) {
  const value = (now, before) => {
    const count = growth(per, now, before);
    return count ? more + (growth(name, now, before) / count) * scale : null;
  };
  return { needs: [name, per], value };
}

function level(name) {
  return { needs: [name], value: ({ values }) => values.get(name) };
}

/** One metric over another since the server began; null while the other is 0. */
function ratio(name, of, scale) {
  const value = ({ values }) => (values.get(of) ? (scale * values.get(name)) / values.get(of) : null);
  return { needs: [name, of], value };
}

/** The mean of a histogram of seconds, in milliseconds. */
function mean(name) {
  return ratio(`${name}_sum`, `${name}_count`, 1000);
}

/**
 * The figures. `value(now, before)` is a number or null; `before` is the sample a second ago. `whole` figures have no
 * decimals, `plain` ones no curve, and `bar` ones are shares of a whole, in parts, counted in `unit`.
 */
export const SECTIONS = [
  {
    title: "Requests",
    figures: [
      { label: "running", whole: true, ...level("foretoken_requests_running") },
      { label: "waiting", whole: true, ...level("foretoken_requests_waiting") },
    ],
  },
  {
    title: "Tokens",
    figures: [
      { label: "written", unit: "/s", whole: true, ...rate("foretoken_generation_tokens_total") },
      { label: "prompts", unit: "/s", whole: true, ...rate("foretoken_prompt_tokens_total") },
    ],
  },
  {
    title: "Steps",
    figures: [
      { label: "time", unit: "ms", ...each("foretoken_step_seconds_sum", "foretoken_step_seconds_count", 1000) },
      { label: "rows", unit: "/step", ...each("foretoken_step_rows_sum", "foretoken_step_rows_count") },
    ],
  },
  {
    title: "KV cache",
    figures: [
      {
        bar: [
          { name: "in use", metric: "foretoken_kv_pages_used" },
          { name: "kept for prefixes", metric: "foretoken_kv_pages_cached" },
        ],
        of: "foretoken_kv_pages",
        unit: "pages",
        needs: ["foretoken_kv_pages_used", "foretoken_kv_pages_cached", "foretoken_kv_pages"],
      },
      {
        label: "prompt tokens found in it",
        unit: "%",
        plain: true,
        ...ratio("foretoken_cached_prompt_tokens_total", "foretoken_prompt_tokens_total", 100),
      },
      { label: "preemptions", whole: true, plain: true, ...level("foretoken_preemptions_total") },
    ],
  },
  {
    title: "Mean times since the start",
    figures: [
      { label: "to the first token", unit: "ms", plain: true, ...mean("foretoken_time_to_first_token_seconds") },
      { label: "from token to token", unit: "ms", plain: true, ...mean("foretoken_time_per_output_token_seconds") },
    ],
  },
  {
    title: "Drafting",
    figures: [
      { label: "drafted", unit: "/s", whole: true, ...rate("foretoken_drafted_tokens_total") },
      { label: "accepted", unit: "/s", whole: true, ...rate("foretoken_accepted_tokens_total") },
      { label: "rejected", unit: "/s", whole: true, ...rate("foretoken_rejected_tokens_total") },
      {
        bar: [
          { name: "accepted", metric: "foretoken_accepted_tokens_total" },
          { name: "rejected", metric: "foretoken_rejected_tokens_total" },
        ],
        of: "foretoken_drafted_tokens_total",
        unit: "drafted",
        needs: ["foretoken_accepted_tokens_total", "foretoken_rejected_tokens_total", "foretoken_drafted_tokens_total"],
      },
      // The accepted ones, and the one that the target says itself.
      {
        label: "tokens of a request a step",
        plain: true,
        ...each("foretoken_accepted_tokens_total", "foretoken_decodes_total", 1, 1),
      },
      { label: "drafts of a request a step", plain: true, ...level("foretoken_draft_budget") },
      {
        label: "time that drafting takes",
        unit: "%",
        plain: true,
        ...each("foretoken_propose_seconds_total", "foretoken_step_seconds_sum", 100),
      },
    ],
  },
];

/** A figure's number as text. */
export function format(number, { whole = false } = {}) {
  if (number === null || Number.isNaN(number)) return "–";
  const digits = whole || number === 0 || Math.abs(number) >= 100 ? 0 : Math.abs(number) >= 10 ? 1 : 2;
  return number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
