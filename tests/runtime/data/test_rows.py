"""In: files of rows, sound and broken. Out: checks of the rows read and of the messages."""

import gzip
import json

import pytest

from specforge.runtime.data.rows import Row, read_rows

pytestmark = pytest.mark.null

ROWS = [{"a": 1}, {"a": "zwei\u2028"}, {"a": [3]}]


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("name", ["rows.json", "rows.json.gz"])
def test_reads_lines_and_arrays_plain_and_zipped(write_rows, name, array):
    path = write_rows(ROWS, name, array)
    assert list(read_rows(path)) == [Row(i, v) for i, v in enumerate(ROWS, start=1)]
    assert list(read_rows(path, 2)) == [Row(1, ROWS[0]), Row(2, ROWS[1])]
    assert list(read_rows(path, 0)) == []


def test_gzip_is_known_by_its_content_not_by_its_name(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert list(read_rows(path)) == [Row(1, {"a": 1})]


def test_blank_lines_are_skipped_and_numbers_stay_those_of_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n  \n{"a": 1}\r\n\r\n{"a": 2}')
    assert list(read_rows(path)) == [Row(3, {"a": 1}), Row(5, {"a": 2})]
    assert list(read_rows(path, 1)) == [Row(3, {"a": 1})]


def test_an_empty_file_has_no_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n\n")
    assert list(read_rows(path)) == []


def test_a_bad_line_names_file_line_and_text(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": oops, "b": 2}\n')
    rows = read_rows(path)
    assert next(rows) == Row(1, {"a": 1})
    with pytest.raises(ValueError, match=r"rows\.jsonl:3: not JSON .* column 7\); the line begins '\{\"a\": oops"):
        next(rows)


def test_a_bad_array_names_its_line(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('\n[{"a": 1},\n {"a": 2},\n {"a": }]\n')
    with pytest.raises(ValueError, match=r"rows\.json:4: not JSON .* begins ' \{\"a\": \}\]'"):
        list(read_rows(path))


@pytest.mark.parametrize("before", [b"", b"[\n"])
def test_bytes_that_are_not_utf8_name_their_line(tmp_path, before):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(before + b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(ValueError, match=rf"rows\.jsonl:{2 + bool(before)}: byte \d+ is not UTF-8"):
        list(read_rows(path))


def test_missing_file_folder_and_broken_gzip_are_told_apart(tmp_path):
    with pytest.raises(ValueError, match="no such file; correct the path"):
        list(read_rows(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="is a folder"):
        list(read_rows(tmp_path))
    whole = gzip.compress(json.dumps(ROWS).encode() * 50)
    for broken in (whole[:-12], whole[:-8] + bytes(8), whole[:12] + b"\xff" * 20):
        (tmp_path / "cut.gz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"cut\.gz: the gzip stream is broken"):
            list(read_rows(tmp_path / "cut.gz"))
