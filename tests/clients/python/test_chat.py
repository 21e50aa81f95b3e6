"""Chats through the openai client: whole and streamed, and every parameter that shapes the answer."""

import math

import pytest


def collected(stream):
    """The texts of a stream by choice, why each ended, and the last chunk."""
    texts, reasons, last = {}, {}, None
    for last in stream:
        for choice in last.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, last


def test_an_answer_has_what_the_client_reads(chat, server):
    answer = chat()
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == server.model and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    assert choice.logprobs is None and not choice.message.tool_calls
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer._request_id


def test_a_stream_is_the_whole_answer_in_parts(chat):
    whole = chat()
    texts, reasons, last = collected(chat(stream=True))
    assert texts == {0: whole.choices[0].message.content} and reasons == {0: "length"}
    assert last.usage is None
    texts, reasons, last = collected(chat(stream=True, stream_options={"include_usage": True}))
    assert texts == {0: whole.choices[0].message.content}
    assert last.choices == [] and last.usage.completion_tokens == 12
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_seed_decides(chat):
    def text(**more):
        return chat(temperature=1.0, max_tokens=24, **more).choices[0].message.content

    assert text(seed=1) == text(seed=1)
    assert len({text(seed=seed) for seed in range(4)}) > 1


def test_choices_differ_and_stream_side_by_side(chat):
    answer = chat(n=3, temperature=1.0)
    texts = {choice.index: choice.message.content for choice in answer.choices}
    assert sorted(texts) == [0, 1, 2] and len(set(texts.values())) == 3
    assert answer.usage.completion_tokens == 36
    assert collected(chat(n=3, temperature=1.0, stream=True))[0] == texts
    # The first of several is the only one of one.
    assert chat(temperature=1.0).choices[0].message.content == texts[0]


def test_log_probabilities_of_each_token(chat):
    answer = chat(logprobs=True, top_logprobs=4, temperature=0)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == answer.choices[0].message.content
    for entry in entries:
        best = entry.top_logprobs
        assert len(best) == 4 and best[0].token == entry.token and best[0].logprob == entry.logprob <= 0
        assert [top.logprob for top in best] == sorted((top.logprob for top in best), reverse=True)
        assert sum(math.exp(top.logprob) for top in best) <= 1.001
    chunks = chat(logprobs=True, top_logprobs=4, temperature=0, stream=True)
    streamed = [entry for chunk in chunks for choice in chunk.choices if choice.logprobs
                for entry in choice.logprobs.content]
    assert streamed == entries
    assert chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_stop_ends_before_the_stop_string(chat):
    text = chat(temperature=0, max_tokens=24).choices[0].message.content
    stop = text[8:11]
    stopped = chat(temperature=0, max_tokens=24, stop=[stop, "never in the text"])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[: text.index(stop)]
    texts, reasons, _ = collected(chat(temperature=0, max_tokens=24, stop=stop, stream=True))
    assert texts == {0: text[: text.index(stop)]} and reasons == {0: "stop"}


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_limits_on_tokens(server, field):
    messages = [{"role": "user", "content": "Count to a hundred."}]
    answer = server.client.chat.completions.create(model=server.model, messages=messages, **{field: 3})
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (3, "length")


def test_a_bias_decides(chat, server):
    token = server.client.post("/../tokenize", body={"prompt": " blue", "add_special_tokens": False}, cast_to=object)
    (token,) = token["tokens"]
    answer = chat(logit_bias={str(token): 100}, max_tokens=3, temperature=0)
    assert answer.choices[0].message.content == " blue blue blue"


def test_penalties_and_what_other_engines_added(chat):
    plain = chat(temperature=0, max_tokens=32).choices[0].message.content
    more = {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.3, "min_tokens": 32, "ignore_eos": True}
    answer = chat(temperature=0, max_tokens=32, presence_penalty=1, frequency_penalty=1, extra_body=more)
    assert answer.usage.completion_tokens == 32 and answer.choices[0].message.content != plain


def test_fields_without_effect_on_the_text_change_nothing(chat):
    more = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True,
            "safety_identifier": "s", "prompt_cache_key": "k"}
    assert chat(**more).choices[0].message == chat().choices[0].message


def test_roles_and_parts_of_text(chat):
    def text(messages):
        return chat(messages=messages, temperature=0).choices[0].message.content

    user = {"role": "user", "content": "Name a colour."}
    system = text([{"role": "system", "content": "Be brief."}, user])
    assert text([{"role": "developer", "content": "Be brief."}, user]) == system
    parts = [{"type": "text", "text": "Name a colour."}]
    assert text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]) == system
    assert text([user, {"role": "assistant", "content": "Red."}, {"role": "user", "content": "Another."}])


def test_leaving_in_mid_stream_frees_the_pages(chat, server):
    before = server.wait_idle()["foretoken_generation_tokens_total"]
    with chat(stream=True, max_tokens=4000, extra_body={"ignore_eos": True}) as stream:
        for _, chunk in zip(range(4), stream):
            assert chunk.choices
        assert server.figures()["foretoken_kv_pages_used"] > 0
    after = server.wait_idle()["foretoken_generation_tokens_total"]
    assert after - before < 4000, "computed to the end for nobody"
