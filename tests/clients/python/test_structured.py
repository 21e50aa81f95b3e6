"""Answers that follow a JSON schema, and tools: what the model would say is not asked, but its form is certain."""

import json
from enum import Enum

import openai
import pytest
from pydantic import BaseModel, Field


class Colour(str, Enum):
    red = "red"
    blue = "blue"


class Paint(BaseModel):
    colour: Colour
    litres: int = Field(ge=1, le=20)
    glossy: bool


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def assert_call(call):
    assert call.id and call.type == "function" and call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Oslo", "Lima") and arguments["unit"] in ("celsius", "fahrenheit")


def test_a_schema_is_followed_at_any_temperature(server):
    for seed in range(3):
        answer = server.client.chat.completions.parse(
            model=server.model, messages=[{"role": "user", "content": "Describe the paint."}],
            response_format=Paint, temperature=1.0, seed=seed, max_tokens=200)
        assert isinstance(answer.choices[0].message.parsed, Paint)
        assert answer.choices[0].finish_reason == "stop"


def test_a_schema_is_followed_in_a_stream(server):
    with server.client.chat.completions.stream(
            model=server.model, messages=[{"role": "user", "content": "Describe the paint."}],
            response_format=Paint, seed=1, max_tokens=200) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Paint)


def test_a_tool_must_be_called(chat):
    for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        answer = chat(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_tokens=200)
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls
        assert_call(call)


def test_a_tool_may_or_may_not_be_called(chat):
    assert not chat(tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls
    for call in chat(tools=[WEATHER], tool_choice="auto", max_tokens=100).choices[0].message.tool_calls or []:
        assert call.function.name == "get_weather"


def test_a_call_comes_in_parts(chat):
    name, arguments, reason = "", "", None
    asked = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    for chunk in chat(**asked, stream=True):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert (name, reason) == ("get_weather", "tool_calls")
    whole = chat(**asked).choices[0].message.tool_calls[0]
    assert_call(whole)
    assert arguments == whole.function.arguments


def test_the_answer_of_a_tool_goes_back(chat):
    call = chat(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=200).choices[0].message
    tool = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "12 degrees, rain"}
    user = {"role": "user", "content": "How is the weather in Oslo?"}
    answer = chat(messages=[user, call.model_dump(exclude_none=True), tool], tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.content


def test_a_schema_that_cannot_be_honoured_is_refused(chat):
    schema = {"name": "x", "strict": True, "schema": {"type": "no such type"}}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(response_format={"type": "json_schema", "json_schema": schema})
    assert caught.value.param.startswith("response_format")
