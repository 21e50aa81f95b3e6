"""Plain completions, models, and what lies beside OpenAI's API."""

import pytest


@pytest.fixture
def complete(server):
    def ask(**more):
        asked = {"model": server.model, "prompt": "Once upon a time", "seed": 7, "max_tokens": 8, "temperature": 0}
        return server.client.completions.create(**asked | more)

    return ask


def tokens_of(server, text):
    return server.client.post("/../tokenize", body={"prompt": text}, cast_to=object)["tokens"]


def test_a_text_is_continued(complete, server):
    answer = complete()
    assert answer.object == "text_completion" and answer.model == server.model
    assert answer.choices[0].text and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    # What is not said is as OpenAI has it.
    free = server.client.completions.create(model=server.model, prompt="One, two,", extra_body={"ignore_eos": True})
    assert free.usage.completion_tokens == 16


def test_a_prompt_comes_back(complete, server):
    text = complete().choices[0].text
    assert complete(echo=True).choices[0].text == "Once upon a time" + text
    nothing = complete(prompt=tokens_of(server, "Once upon a time"), echo=True, max_tokens=0)
    assert (nothing.choices[0].text, nothing.choices[0].finish_reason) == ("Once upon a time", "length")
    assert nothing.usage.completion_tokens == 0


def test_tokens_are_continued_like_their_text(complete, server):
    tokens = tokens_of(server, "Once upon a time")
    assert complete(prompt=tokens).choices[0].text == complete().choices[0].text
    assert complete(prompt=[tokens, tokens]).choices[1].text == complete().choices[0].text


def test_several_prompts_with_several_choices(complete):
    answer = complete(prompt=["Once", "The capital of France is"], n=2, temperature=1.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens <= 32
    alone = complete(prompt="The capital of France is", n=2, temperature=1.0)
    assert [choice.text for choice in alone.choices] == [choice.text for choice in answer.choices[2:]]


def test_a_stream(complete):
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == complete().choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8


def test_log_probabilities(complete):
    choice = complete(logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 8
    for token, logprob, best in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert best[token] == logprob == max(best.values())


def test_stop(complete):
    text = complete().choices[0].text
    assert complete(stop=text[4:7]).choices[0].text == text[: text.index(text[4:7])]


def test_models(server):
    models = server.client.models.list().data
    assert [model.id for model in models] == [server.model]
    model = server.client.models.retrieve(server.model)
    assert model.id == server.model and model.object == "model" and model.created > 1_600_000_000


def test_tokens_and_back(server):
    tokens = tokens_of(server, "Grüße, 世界!")
    text = server.client.post("/../detokenize", body={"tokens": tokens}, cast_to=object)["prompt"]
    assert text == "Grüße, 世界!"


def test_a_prefix_is_found_again(complete):
    prompt = "A story that is told twice. " * 20
    first = complete(prompt=prompt, extra_body={"cache_salt": "twice"})
    second = complete(prompt=prompt, extra_body={"cache_salt": "twice"})
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens >= 64
    assert second.choices[0].text == first.choices[0].text
