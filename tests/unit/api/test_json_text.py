"""Values in the text of JSON are found without decoding, wherever the pieces of the text end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.api import json_text
from dtj.api.json_text import ObjectText, ValueEnd, has_more_entries, members, object_in

_TEXTS = st.text(alphabet='ab"\\{}[],:é\n😀', max_size=8)
_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda data: st.lists(data, max_size=4) | st.dictionaries(_TEXTS, data, max_size=4),
    max_leaves=40,
)
_FORMS = st.sampled_from(
    [{"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (" , ", " : ")}]
)


def entries(data: Any) -> int:
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return sum(1 + entries(value) for value in values)


@given(
    st.lists(_DATA) | st.dictionaries(_TEXTS, _DATA),
    _FORMS,
    st.lists(st.integers(1, 9)),
    st.sampled_from([1, 2, 3, 7, 16_384]),
)
def test_the_end_the_members_and_the_entries_are_those_of_the_data(
    data: Any, form: dict[str, Any], sizes: list[int], window: int
) -> None:
    text = json.dumps(data, **form).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_WINDOW", window)
        whole, end, at = text + b' ,{"]}', ValueEnd(), 1
        for size in [*sizes, len(whole)]:
            found = end.find(whole[at : at + size])
            if found is not None:
                break
            at += size
        assert found is not None
        assert at + found == len(text)
        count = entries(data)
        assert has_more_entries(text, count - 1)
        assert not has_more_entries(text, count)
    if isinstance(data, dict):
        assert {key: json.loads(value) for key, value in members(text).items()} == data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "does not begin with {, as an object does") for text in ("", "[]", "7")),
        ('{"a":', "has no complete value at byte 5"),
        ('{"a":[}', "has no } or key at byte 7"),
        ('{"a":"b', "has no complete value at byte 5"),
        ('{"a":1', "has no } or key at byte 6"),
        ("{a:1}", "has no } or key at byte 1"),
        ('{"a":1} {}', "goes on after the end of its object at byte 6"),
    ],
)
def test_what_is_no_object_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^the JSON text {message}$"):
        members(text.encode())


def test_a_dense_object_is_not_decoded_and_the_fields_of_its_managers_never() -> None:
    metadata = {"name": "a", "managedFields": [{"fieldsV1": "é"}]}
    job = {"metadata": metadata, "spec": {"tolerations": [{}] * 40_000}, "count": 3}
    text = json.dumps(job).encode()

    seen = object_in(text.replace(b'"\\u00e9"', b"no JSON"))

    assert isinstance(seen, ObjectText)
    assert (list(seen), seen["metadata"], seen["count"]) == (list(job), {"name": "a"}, 3)
    assert seen["spec"] == job["spec"]
    assert json.loads(seen.text("status")) is None
    assert object_in(b'{"a": 1}') == {"a": 1}
