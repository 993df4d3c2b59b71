"""Names that can't be keys have another form in the bucket, and come back exactly."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import example, given
from hypothesis import strategies as st
from tests.trainer.conftest import Workspace, has, keys

from dtj.client import Artifacts
from dtj_trainer.artifacts.store import MARK, Store, key_of, path_of

NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: not {0, ord("/")} & set(name)).map(os.fsdecode)


@given(st.lists(NAMES | NAMES.map(lambda name: MARK + name), min_size=1, max_size=4).map("/".join))
@example("\udcff.pt")
@example("50%25 \u2028 \ufffe")
@example(f"{MARK}x/a\x01\n")
def test_each_path_comes_back_from_a_key_that_stores_and_xml_take(path: str) -> None:
    key = key_of(path)
    assert path_of(key) == path
    ElementTree.fromstring(f"<Key>{key.encode().decode().replace('&', '&amp;').replace('<', '&lt;')}</Key>")
    assert key.count("/") == path.count("/")


@given(st.text(max_size=20).map(lambda text: text.replace("/", "")))
@example("..%2F..%2Fetc%2Fpasswd")
@example("%2E%2E")
@example("")
def test_no_key_of_strangers_leads_elsewhere(text: str) -> None:
    path = path_of(f"model/{MARK}{text}")
    assert path.count("/") == 1
    assert path.partition("/")[2] not in {"", ".", ".."}


def test_usual_names_are_their_own_keys() -> None:
    for name in ("model/model.pt", "50%", "Grüße 你好.txt", "a b+c&d=e?#"):
        assert key_of(name) == path_of(name) == name


def test_odd_names_of_all_folders_come_back(
    workspace: Workspace, job_uri: str, job_store: Store, tmp_path: Path
) -> None:
    program = (
        "import os\n"
        "root = os.fsencode(os.environ['DTJ_ROOT'])\n"
        "for folder in (b'checkpoints', b'model', b'tensorboard'):\n"
        "    os.makedirs(os.path.join(root, folder, b'\\xfe\\x01'))\n"
        "    open(os.path.join(root, folder, b'\\xfe\\x01/\\xff.\\xc3\\xbc'), 'w').write('content\\n')\n"
    )
    run = workspace.python(program, DTJ_ARTIFACTS_URI=job_uri)
    assert run.ended() == 0, run.output
    place = b"\xfe\x01/\xff.\xc3\xbc"
    artifacts = Artifacts(job_uri, os.environ)
    for folder in ("model", "tensorboard"):
        artifacts.get(folder, tmp_path)
        assert (tmp_path / folder / os.fsdecode(place)).read_text() == "content\n"
    artifacts.get_checkpoint(artifacts.checkpoints()[-1].number, tmp_path / "restored")
    assert (tmp_path / "restored" / os.fsdecode(place)).read_text() == "content\n"
    assert has(job_store, "model/dtj-name-%FE%01/dtj-name-%FF.%C3%BC")
    job_store.delete([key for key in keys(job_store) if MARK in key])
    assert not [key for key in keys(job_store) if MARK in key]
