import json

import pytest

from hf_bidir.common.files import replacing, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"accuracy": 1})

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half of it")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert json.loads(path.read_text()) == {"accuracy": 1}
    assert list(tmp_path.iterdir()) == [path]
