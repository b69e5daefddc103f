"""The tools of the Space, called by a client of the Model Context Protocol."""

import asyncio
import base64
import io
import json

import mcp
import pytest
from mcp.client import streamable_http
from models import LONGEST, SENTENCES
from PIL import Image

from hf_bidir.explain import explain, load_checkpoint
from tests.space.conftest import FILMS, ROOT


@pytest.fixture
def call(address):
    """Calls a tool of a running Space: its result, and whether it is an error; without a name, lists the tools."""

    async def answer(tool, arguments):
        async with (
            streamable_http.streamable_http_client(f"{address}gradio_api/mcp/") as (read, write, _),
            mcp.ClientSession(read, write) as session,
        ):
            await session.initialize()
            if tool is None:
                return (await session.list_tools()).tools
            result = await session.call_tool(tool, arguments)
            return result.content[0].text, result.isError

    return lambda tool=None, **arguments: asyncio.run(answer(tool, arguments))


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def black(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return encoded(file.getvalue())


def test_every_tool_and_argument_has_a_description_and_models_say_what_they_take(call):
    tools = {tool.name: tool for tool in call()}
    assert set(tools) == {"models", "explain"}
    arguments = tools["explain"].inputSchema["properties"]
    assert set(arguments) == {"model", "text", "image", "method", "target"}
    assert all(argument["type"] == "string" and argument["description"] for argument in arguments.values())
    models = {model["name"]: model for model in json.loads(call("models")[0])}
    assert {name: model["takes"] for name, model in models.items()} == {
        "digits": "image",
        "sst2-rnn": "text",
        "words": "text",
    }
    assert models["words"]["example"] == SENTENCES[0]


def test_a_text_is_explained_with_the_numbers_of_the_library_by_both_models(call):
    text, failed = call("explain", model="sst2-rnn", text=SENTENCES[1], method="contributions", target="negative")
    assert not failed, text
    first, second = json.loads(text)["models"]
    assert (first["model"], second["model"]) == ("sst2-rnn-tanhmax", "sst2-rnn-softmax")
    expected = explain(*load_checkpoint(FILMS[0]), SENTENCES[1], "contributions", target="negative")
    assert first["example"]["tokens"] == expected.tokens
    assert first["scores"] == pytest.approx(expected.scores.tolist(), abs=1e-5)
    assert first["summary"] == expected.summary()


@pytest.mark.parametrize("target", ["", "negative"])
@pytest.mark.parametrize(("sentence", "second"), [(0, "positive"), (1, "negative")])
def test_the_answer_says_whether_the_models_agree_also_about_another_class(call, sentence, second, target):
    answer = json.loads(call("explain", model="sst2-rnn", text=SENTENCES[sentence], target=target)[0])
    assert [model["prediction"] for model in answer["models"]] == ["positive", second]
    assert answer["agree"] is (second == "positive")


@pytest.mark.parametrize(("words", "truncated"), [(3, False), (LONGEST, True)])
def test_the_answer_says_whether_the_end_of_the_text_was_left_out(call, words, truncated):
    answer = json.loads(call("explain", model="sst2-rnn", text="good " * words)[0])
    assert answer["truncated"] is truncated


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_an_image_is_explained_from_its_file_in_base64(call, prefix):
    digit = (ROOT / "space/examples/digits/3.png").read_bytes()
    text, failed = call("explain", model="digits", image=prefix + encoded(digit))
    assert not failed, text
    answer = json.loads(text)
    assert "“3”" in answer["verdict"]
    assert len(answer["models"][0]["scores"]) >= 16


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("other", {}, "there is no model 'other'; choose one of: digits, sst2-rnn"),
        ("sst2-rnn", {"text": " "}, "type a text"),
        ("sst2-rnn", {"text": "a film", "method": "guess"}, "guess"),
        ("digits", {}, "upload an image"),
        ("digits", {"image": "no image"}, "expected an image file in base64"),
        ("digits", {"image": encoded(b"no image")}, "expected an image file in base64"),
        ("digits", {"image": black(4001, 4000)}, "at most 16 megapixels"),
        ("digits", {"image": black(20_000, 10_000)}, "at most 16 megapixels"),
    ],
    ids=range(8),
)
def test_bad_arguments_are_an_error_of_one_sentence(call, model, arguments, message):
    text, failed = call("explain", model=model, **arguments)
    assert failed
    assert message in text
    assert "Traceback" not in text
