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
    computed = {}
    compute = push.isolated_forward

    def isolated_forward(folder, auto, inputs):
        key = push.content_tag(folder), auto
        if key not in computed:
            computed[key] = compute(folder, auto, inputs)
        return computed[key]

    def run(*words: object, **environment: str) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], env=environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        patch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(_http.http_backoff, "__kwdefaults__", _without_pauses())
        patch.setattr(push, "isolated_forward", isolated_forward)
        patch.setenv("HF_TOKEN", "hf_alice")
        yield run


def stranger(hub: Hub, home: Path, code: str, *words: object) -> list[str]:
    """The lines that a program prints in a fresh process of bob."""
    home.mkdir()
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_TOKEN": "hf_bob", "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return run_python(code, *words, isolated=True, fresh=True, cwd=home, **environment).splitlines()


def _without_pauses() -> dict[str, object]:
    return _http.http_backoff.__kwdefaults__ | {"base_wait_time": 0.01, "max_wait_time": 0.01}
