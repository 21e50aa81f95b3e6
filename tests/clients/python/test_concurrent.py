"""The promise over HTTP: an answer does not depend on who else is answered at the same time."""

import asyncio

import openai

ASKED = 16


def request(model, i):
    """Requests of many kinds: lengths, seeds, temperatures, prompts with and without a common beginning."""
    system = "You are a helpful assistant who answers in one sentence." if i % 2 else "You write poems."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Tell me about {i}. " * (1 + i)}]
    return {"model": model, "messages": messages, "seed": i, "temperature": [0, 0.7, 1.0, 1.5][i % 4],
            "top_p": [1, 0.9][i % 2], "max_tokens": 8 + 2 * i, "n": 1 + (i % 5 == 0), "logprobs": True,
            "top_logprobs": 2, "extra_body": {"ignore_eos": True}}


async def ask(client, asked, stream):
    """The tokens of each choice with their log-probabilities, bit by bit."""
    answer = await client.chat.completions.create(**asked, stream=stream)
    choices = {}
    if stream:
        async for chunk in answer:
            for choice in chunk.choices:
                choices.setdefault(choice.index, []).extend(choice.logprobs.content if choice.logprobs else [])
    else:
        choices = {choice.index: choice.logprobs.content for choice in answer.choices}
    return choices


async def alone_and_together(server):
    async with openai.AsyncOpenAI(**server.options) as client:
        requests = [request(server.model, i) for i in range(ASKED)]
        alone = [await ask(client, asked, stream=False) for asked in requests]
        together = await asyncio.gather(*(ask(client, asked, i % 3 == 0) for i, asked in enumerate(requests)))
    return alone, together


def test_answers_together_are_the_answers_alone(server):
    before = server.wait_idle()
    alone, together = asyncio.run(alone_and_together(server))
    for i, (first, second) in enumerate(zip(alone, together)):
        assert len(first[0]) == 8 + 2 * i
        assert first == second, f"request {i}"
    after = server.wait_idle()
    steps = after["foretoken_step_rows_count"] - before["foretoken_step_rows_count"]
    longest = max(8 + 2 * i for i in range(ASKED))
    one_by_one = sum(8 + 2 * i for i in range(ASKED))
    assert steps < one_by_one + longest * ASKED / 2, "they were not answered together"


def test_leaving_at_random_leaves_nothing(server):
    async def leave(client, i):
        stream = await client.chat.completions.create(**request(server.model, i) | {"max_tokens": 2000}, stream=True)
        seen = 0
        async for _ in stream:
            seen += 1
            if seen > i:
                break
        await stream.close()

    async def all_leave():
        async with openai.AsyncOpenAI(**server.options) as client:
            await asyncio.gather(*(leave(client, i) for i in range(8)))

    asyncio.run(all_leave())
    server.wait_idle()
