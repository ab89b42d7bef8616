"""What runs and files hold is shown as text: never as part of a page, never as a command to a terminal."""

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import run_directories
from ctr.cli import main
from ctr.eval.report import render_report
from ctr.io.errors import InputError, one_line, printable
from report_pages import Html

HOSTILE = """</script><script>alert(1)</script>"'><img src=x onerror=alert(1)>{{ 7*7 }}{% raw %}&lt;"""


@pytest.mark.slow
def test_no_text_of_a_run_becomes_part_of_its_report(tmp_path):
    rows = run_directories.make_rows(1, queries=40).rename(columns={"position": HOSTILE})
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    run = run_directories.write_run(
        folder,
        rows.assign(position=0),
        run_directories.predict(rows, 1, 1.0),
        slices=(HOSTILE,),
        config={HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
        rejects=(HOSTILE,),
        skipped_ranges=[[0, 20]],
        config_sha256=HOSTILE,
    )
    (run / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE, "x": {HOSTILE: HOSTILE}}))
    plain = run_directories.write_run(
        tmp_path / "_a & <b> $\\frac{", rows.assign(position=0), run_directories.predict(rows, 2, 1.0)
    )
    page = Html(render_report([run, plain]))
    page.check()
    for svg in page.images():
        parts = list(ElementTree.fromstring(svg).iter())
        tags = {part.tag.rpartition("}")[2] for part in parts}
        assert not tags & {"script", "foreignObject", "a", "image", "style"}
        assert not [name for part in parts for name in part.attrib if name.lower().startswith("on")]
        # Names are in the words beside a plot, never in it.
        assert not any("alert" in text or "frac" in text for part in parts if (text := part.text or ""))
    assert "<script>alert(1)</script>" in page.words and "_a & <b> $\\frac{" in page.words
    assert "{{ 7*7 }}" in page.words


@pytest.mark.parametrize("entries", [{"skipped_ranges": [[HOSTILE, 1]]}, {"shampoo": {"failed": HOSTILE}}])
def test_text_in_the_place_of_numbers_of_faults_is_refused(tmp_path, entries):
    rows = run_directories.make_rows(1, queries=4)
    run = run_directories.write_run(tmp_path / "run", rows, run_directories.predict(rows, 1, 1.0), **entries)
    with pytest.raises(InputError, match=next(iter(entries))):
        render_report([run])


@given(st.text())
def test_a_terminal_obeys_nothing_in_an_error(text):
    line = one_line(InputError(text))
    assert "\n" not in line
    assert all(character.isprintable() or character.isspace() for character in line)
    assert not set(line) & set("\x1b\r\x08\x07\x9b\u202e\u2066\u200b\x00\x7f\u2028")


def test_what_is_harmless_stays_and_an_error_without_words_is_told_by_its_kind():
    for text in ("日本 Grün £ – ×", "a\tb\nc", "x y"):
        assert printable(text) == text
    assert printable("a\x1b[31mb\r\u202e") == r"a\x1b[31mb\r\u202e"
    assert (one_line(KeyError()), one_line(MemoryError(" \n"))) == ("KeyError", "MemoryError")


@pytest.mark.parametrize("value", ["\x1b]0;title\x07", "a\rb", "\u202eoof", "two\nlines"])
def test_the_command_line_shows_values_of_files_escaped(tmp_path, capsys, value):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"seed": value, value: 1}))
    assert main(["train", str(tmp_path), "--config", str(path), "--out", str(tmp_path / "run")]) == 1
    reported = capsys.readouterr().err
    assert reported.startswith("error: ")
    # A line of both faults, and what is allowed in place of the unknown key.
    line, hint, rest = reported.split("\n")
    assert line.isprintable() and hint.isprintable() and not rest
