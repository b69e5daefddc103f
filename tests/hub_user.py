"""Users of the Hub in hub_server.py: one in this process, and strangers without hf_bidir in processes of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http
from typer.testing import CliRunner, Result

from hf_bidir.cli import app
from hf_bidir.hub import push
from tests.hub_server import Hub
from tests.processes import run_python


@contextmanager
def alice(hub: Hub, home: Path) -> Iterator[Callable[..., Result]]:
    """A function that runs commands of hf-bidir as alice, with a cache of her own and settings for one command.

    The client does not pause between attempts. What a checkpoint computes in a clean process is computed once.
    """
    compute = push.isolated_forward
    computed = {}

    def isolated_forward(folder: Path, auto: str, inputs: dict) -> dict:
        tag = push.content_tag(folder)
        if tag not in computed:
            computed[tag] = compute(folder, auto, inputs)
        return computed[tag]

    def run(*words: object, **environment: str) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], env=environment)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings(hub, home).items():
            patch.setattr(constants, name, value)
        pauses = {"base_wait_time": 0.01, "max_wait_time": 0.01}
        patch.setattr(_http.http_backoff, "__kwdefaults__", _http.http_backoff.__kwdefaults__ | pauses)
        patch.setattr(push, "isolated_forward", isolated_forward)
        patch.setenv("HF_TOKEN", "hf_alice")
        yield run


def stranger(hub: Hub, home: Path, code: str, *words: object) -> list[str]:
    """The lines that a program of bob prints in a process of its own."""
    home.mkdir()
    set_up = "from huggingface_hub import constants, hf_api\n"
    set_up += f"vars(constants).update({settings(hub, home)})\nhf_api.api.endpoint = constants.ENDPOINT\n"
    environment = {"HF_TOKEN": "hf_bob", "HF_MODULES_CACHE": str(home / "modules")}
    return run_python(set_up + code, *words, isolated=True, cwd=home, **environment).splitlines()


def settings(hub: Hub, home: Path) -> dict[str, object]:
    """Of the client: this Hub, and a cache of its own."""
    return {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }
