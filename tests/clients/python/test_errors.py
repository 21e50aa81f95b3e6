"""Refusals: the exception that the client makes of each, and what the exception tells."""

import threading

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello"}]


def refused(exception, call, **asked):
    with pytest.raises(exception) as caught:
        call(**{"messages": HELLO, "max_tokens": 2} | asked)
    error = caught.value
    assert error.body["message"] and error.type and error.request_id
    return error


def test_a_model_that_is_not_there(server):
    error = refused(openai.NotFoundError, server.client.chat.completions.create, model="gpt-4")
    assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        ({"temperature": -1}, "temperature", None),
        ({"n": 0}, "n", None),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"logit_bias": {"blue": 1}}, "logit_bias", None),
        ({"messages": []}, "messages", None),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"extra_body": {"some_new_field": 1}}, "some_new_field", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
         "messages[0].content", "unsupported_parameter"),
    ],
)
def test_a_field_that_cannot_be_honoured(server, asked, param, code):
    error = refused(openai.BadRequestError, server.client.chat.completions.create, model=server.model, **asked)
    assert (error.status_code, error.param, error.code) == (400, param, code)
    assert error.type == "invalid_request_error"


def test_a_prompt_longer_than_the_context(server):
    messages = [{"role": "user", "content": "word " * 20_000}]
    error = refused(openai.BadRequestError, server.client.chat.completions.create, model=server.model,
                    messages=messages)
    assert error.code == "context_length_exceeded"


def test_a_wrong_key(strict):
    client = openai.OpenAI(**strict.options | {"api_key": "wrong"})
    error = refused(openai.AuthenticationError, client.chat.completions.create, model=strict.model)
    assert (error.status_code, error.code) == (401, "invalid_api_key")


def test_a_body_that_is_too_large(strict):
    # Small enough that all of it has been sent when the answer comes.
    messages = [{"role": "user", "content": "x" * 12_000}]
    error = refused(openai.APIStatusError, strict.client.chat.completions.create, model=strict.model,
                    messages=messages)
    assert (error.status_code, error.code) == (413, "too_large")


def test_an_address_that_is_not_there(server):
    with pytest.raises(openai.NotFoundError) as caught:
        server.client.embeddings.create(model=server.model, input="x", encoding_format="float")
    assert caught.value.code == "not_found"


def test_a_full_queue_and_the_client_that_comes_back(strict):
    strict.wait_idle()

    def endless():
        more = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
        return strict.client.chat.completions.create(model=strict.model, messages=HELLO, stream=True, **more)

    running = endless()
    next(iter(running))
    waiting = endless()
    strict.wait_until(lambda figures: figures["foretoken_requests_waiting"] == 1)

    error = refused(openai.RateLimitError, strict.client.chat.completions.create, model=strict.model)
    assert (error.status_code, error.code) == (429, "queue_full")
    assert int(error.response.headers["retry-after"]) >= 1

    refusals = strict.refused(429)
    answers = []
    patient = strict.client.with_options(max_retries=20)
    ask = lambda: answers.append(patient.chat.completions.create(model=strict.model, messages=HELLO, max_tokens=2))
    retrying = threading.Thread(target=ask)
    retrying.start()
    strict.wait_until(lambda _: strict.refused(429) > refusals)
    waiting.close()
    running.close()
    retrying.join()
    assert answers[0].usage.completion_tokens > 0
    strict.wait_idle()
