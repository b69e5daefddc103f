"""The tools of the Space, called by a client of the Model Context Protocol."""

import asyncio
import base64
import io
import json
from pathlib import Path

import mcp
import pytest
from mcp.client import streamable_http
from models import LONGEST, SENTENCES
from page import LAUNCH, page
from PIL import Image

from hf_bidir.explain import explain, load_checkpoint

ROOT = Path(__file__).parents[2]
NAMES = [f"{name}-{activation}" for name in ("digits", "sst2-rnn") for activation in ("tanhmax", "softmax")]
DIGIT = ROOT / "space/examples/digits/3.png"


@pytest.fixture(scope="module")
def call():
    """Calls a tool of a running Space: its result, and whether it is an error; without a name, lists the tools."""
    blocks = page([str(ROOT / "model_cards" / name) for name in NAMES])
    _, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **LAUNCH)

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

    yield lambda tool=None, **arguments: asyncio.run(answer(tool, arguments))
    blocks.close()


def encoded(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_every_tool_and_argument_has_a_description_and_models_say_what_they_take(call):
    tools = {tool.name: tool for tool in call()}
    assert set(tools) == {"models", "explain"}
    arguments = tools["explain"].inputSchema["properties"]
    assert set(arguments) == {"model", "text", "image", "method", "target"}
    assert all(argument["type"] == "string" and argument["description"] for argument in arguments.values())
    listed = json.loads(call("models")[0])
    assert [(model["name"], model["takes"]) for model in listed] == [("digits", "image"), ("sst2-rnn", "text")]
    assert listed[1]["example"] == SENTENCES[0]


def test_a_text_is_explained_with_the_numbers_of_the_library_by_both_models(call):
    text, failed = call("explain", model="sst2-rnn", text=SENTENCES[1], method="contributions", target="negative")
    assert not failed, text
    models = json.loads(text)["models"]
    assert [model["model"] for model in models] == ["sst2-rnn-tanhmax", "sst2-rnn-softmax"]
    source = load_checkpoint(ROOT / "model_cards/sst2-rnn-tanhmax")
    expected = explain(*source, SENTENCES[1], "contributions", target="negative")
    assert models[0]["tokens"] == expected.tokens
    assert models[0]["scores"] == pytest.approx(expected.scores.tolist(), abs=1e-5)
    assert models[0]["summary"] == expected.summary()


@pytest.mark.parametrize(("sentence", "agree"), [(0, True), (1, False)])
def test_the_answer_says_whether_the_models_agree_also_about_another_class(call, sentence, agree):
    for target in ("", "negative"):
        told = json.loads(call("explain", model="sst2-rnn", text=SENTENCES[sentence], target=target)[0])
        predicted = ["positive", "positive" if agree else "negative"]
        assert (told["agree"], [model["prediction"] for model in told["models"]]) == (agree, predicted)


@pytest.mark.parametrize(("words", "truncated"), [(3, False), (LONGEST, True)])
def test_the_answer_says_whether_the_end_of_the_text_was_left_out(call, words, truncated):
    told = json.loads(call("explain", model="sst2-rnn", text="good " * words)[0])
    assert told["truncated"] is truncated


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_an_image_is_explained_from_its_file_in_base64(call, prefix):
    text, failed = call("explain", model="digits", image=prefix + base64.b64encode(DIGIT.read_bytes()).decode())
    assert not failed, text
    assert "“3”" in json.loads(text)["verdict"]
    assert len(json.loads(text)["models"][0]["scores"]) >= 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "other"}, "there is no model 'other'; choose one of: digits, sst2-rnn"),
        ({"model": "sst2-rnn", "text": " "}, "type a text"),
        ({"model": "sst2-rnn", "text": "a film", "method": "guess"}, "guess"),
        ({"model": "digits"}, "upload an image"),
        ({"model": "digits", "image": "no image"}, "expected an image file in base64"),
        ({"model": "digits", "image": base64.b64encode(b"no image").decode()}, "expected an image file in base64"),
        ({"model": "digits", "image": encoded(Image.new("1", (4001, 4000)))}, "at most 16 megapixels"),
        ({"model": "digits", "image": encoded(Image.new("1", (20_000, 10_000)))}, "at most 16 megapixels"),
    ],
    ids=range(8),
)
def test_bad_arguments_are_an_error_of_one_sentence(call, arguments, message):
    text, failed = call("explain", **arguments)
    assert (failed, message in text, "Traceback" in text) == (True, True, False), text
