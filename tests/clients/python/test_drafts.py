"""Drafts through the openai client: `prediction` and `speculation` make answers come sooner, and no other."""

import openai
import pytest

from test_chat import collected

GREEDY = {"temperature": 0, "max_tokens": 48}


def drafts(usage):
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def test_a_prediction_is_accepted_and_changes_nothing(chat):
    plain = chat(**GREEDY, extra_body={"speculation": {"enabled": False}})
    text = plain.choices[0].message.content
    assert drafts(plain.usage) == (0, 0)
    half = len(text) // 2
    parts = [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]
    for content in (text, parts, text[:half] + "!" + text[half:]):
        answer = chat(**GREEDY, prediction={"type": "content", "content": content})
        assert answer.choices[0].message.content == text
        assert answer.usage.completion_tokens == plain.usage.completion_tokens
        accepted, rejected = drafts(answer.usage)
        assert 0 < accepted < plain.usage.completion_tokens and rejected >= 0


def test_a_prediction_that_is_wrong_changes_nothing_either(chat):
    text = chat(**GREEDY).choices[0].message.content
    answer = chat(**GREEDY, prediction={"type": "content", "content": "Nothing of this will be said."})
    assert answer.choices[0].message.content == text


def test_a_stream_ends_with_its_drafts(chat):
    text = chat(**GREEDY).choices[0].message.content
    predicted = {"prediction": {"type": "content", "content": text}}
    stream = chat(**GREEDY, **predicted, n=2, stream=True, stream_options={"include_usage": True})
    texts, _, last = collected(stream)
    assert texts == {0: text, 1: text}
    assert 0 < drafts(last.usage)[0] < last.usage.completion_tokens == 2 * GREEDY["max_tokens"]


def test_chance_and_the_seed_decide_as_without_drafts(chat):
    def text(**more):
        return chat(temperature=0.8, max_tokens=32, **more).choices[0].message.content

    plain = text(extra_body={"speculation": {"max_draft": 0}})
    assert text() == plain
    assert text(prediction={"type": "content", "content": plain}) == plain


def test_only_a_lossy_rule_is_announced(chat):
    def answer(acceptance):
        return chat(temperature=0.8, extra_body={"speculation": {"acceptance": acceptance}})

    assert answer("typical").model_extra["speculation"] == {"acceptance": "typical", "lossless": False}
    assert "speculation" not in answer("ratio").model_extra


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("speculation.acceptance", {"extra_body": {"speculation": {"acceptance": "strict"}}}),
        ("speculation.max_drafts", {"extra_body": {"speculation": {"max_drafts": 1}}}),
        ("prediction.type", {"prediction": {"type": "text", "content": "x"}}),
    ],
)
def test_what_is_wrong_is_named(chat, field, more):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(**more)
    assert refused.value.param == field
