"""The tools of the Space, called by a client of the Model Context Protocol."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
from models import SENTENCES
from page import LAUNCH, page

from hf_bidir.explain import explain, load_checkpoint

mcp = pytest.importorskip("mcp", reason="pip install 'mcp<2'")
streamable_http = pytest.importorskip("mcp.client.streamable_http")

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


def test_every_tool_and_argument_has_a_description(call):
    tools = {tool.name: tool for tool in call()}
    assert set(tools) == {"models", "explain"}
    assert "A positive score supports the explained class" in tools["explain"].description
    arguments = tools["explain"].inputSchema["properties"]
    assert set(arguments) == {"model", "text", "image", "method", "target"}
    assert all(argument["type"] == "string" and argument["description"] for argument in arguments.values())


def test_the_models_are_listed_with_what_they_take(call):
    listed = json.loads(call("models")[0])
    assert [(model["name"], model["takes"]) for model in listed] == [("digits", "image"), ("sst2-rnn", "text")]
    assert listed[1]["example"] == SENTENCES[0]


def test_a_text_is_explained_with_the_numbers_of_the_library_by_both_models(call):
    text, failed = call("explain", model="sst2-rnn", text=SENTENCES[1], method="contributions", target="negative")
    assert not failed, text
    told = json.loads(text)["models"]
    assert [one["model"] for one in told] == ["sst2-rnn-tanhmax", "sst2-rnn-softmax"]
    expected = explain(
        *load_checkpoint(ROOT / "model_cards/sst2-rnn-tanhmax"), SENTENCES[1], "contributions", target="negative"
    )
    assert told[0]["tokens"] == expected.tokens
    assert told[0]["scores"] == pytest.approx(expected.scores.tolist(), abs=1e-5)
    assert told[0]["summary"] == expected.summary()
    assert "The models differ" in json.loads(call("explain", model="sst2-rnn", text=SENTENCES[1])[0])["verdict"]


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_an_image_is_explained_from_its_file_in_base64(call, prefix):
    data = prefix + base64.b64encode(DIGIT.read_bytes()).decode()
    text, failed = call("explain", model="digits", image=data)
    assert not failed, text
    assert "“3”" in json.loads(text)["verdict"]
    assert len(json.loads(text)["models"][0]["scores"]) >= 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "other"}, "there is no model 'other'; choose one of: digits, sst2-rnn"),
        ({"model": "sst2-rnn", "text": " "}, "type a text"),
        ({"model": "digits"}, "upload an image"),
        ({"model": "digits", "image": "no image"}, "expected an image file in base64"),
        ({"model": "digits", "image": base64.b64encode(b"no image").decode()}, "expected an image file in base64"),
        ({"model": "sst2-rnn", "text": "a film", "method": "guess"}, "guess"),
    ],
)
def test_bad_arguments_are_an_error_of_one_sentence(call, arguments, message):
    text, failed = call("explain", **arguments)
    assert (failed, message in text) == (True, True), text
    assert "Traceback" not in text
