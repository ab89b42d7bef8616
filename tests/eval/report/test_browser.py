"""The pages in a real browser, light and dark: nothing is cut, and no labels overlap."""

import base64
import hashlib
import html as html_module
import json
import re
import shutil
import subprocess

import pytest

import experiment_folders
import run_directories
import search_records
from ctr.eval.report import write_report
from ctr.experiments.report.write import write_experiment
from ctr.search.report import write_search

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--virtual-time-budget=9000")

# In the page: what its console and scripts complain of, and the values of expressions, are told to the frame around it.
PROBE = """
const errors = [];
console.error = (...words) => errors.push(words.join(" "));
for (const kind of ["error", "securitypolicyviolation"])
  addEventListener(kind, (event) => errors.push(String(event.message || event.blockedURI)));
addEventListener("load", () => parent.postMessage(JSON.stringify({found: [%s], errors}), "*"));
"""
FRAME = """<iframe src="page.html" style="width: %dpx; height: 900px; border: 0"></iframe>
<pre></pre><script>onmessage = (event) => document.querySelector("pre").textContent = event.data</script>"""


def look(path, width, folder, *scripts, dark=False):
    """Values of expressions in a page, in a window of that width, once it is there."""
    assert CHROMIUM is not None
    probe = PROBE % ", ".join(scripts)
    digest = base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode()
    html = path.read_text().replace(
        "default-src 'none'", f"default-src 'none'; script-src 'sha256-{digest}'", 1
    )
    # As if the system had chosen one.
    html = html.replace("(prefers-color-scheme: dark)", f"({'min' if dark else 'max'}-width: 1px)")
    (folder / "page.html").write_text(html.replace("<title>", f"<script>{probe}</script><title>", 1))
    (folder / "frame.html").write_text(FRAME % width)
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command += [f"--window-size={max(width, 600)},1000", (folder / "frame.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120)
    message = json.loads(html_module.unescape(re.search("<pre>(.*)</pre>", shown.stdout, re.DOTALL)[1]))
    assert message["errors"] == [], message
    return message["found"]


NARROW = 420

# What ends beyond the window, unless it can be scrolled to, once everything is open.
CUT = """(() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const scrolls = (element) => {
    for (let one = element.parentElement; one; one = one.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(one).overflowX)) return true;
    return false;
  };
  const cut = [...document.body.querySelectorAll("*")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width && (box.right > window.innerWidth + 0.5 || box.left < -0.5) && !scrolls(element);
  });
  return {width: document.documentElement.scrollWidth, cut: cut.map((one) => `${one.tagName} ${one.textContent}`)};
})()"""

# Tables with rows that must be scrolled to, and words of heads and names that are taller than a line.
BROKEN = """(() => {
  const cut = [...document.querySelectorAll(".scroll")].filter((box) => box.scrollHeight > box.clientHeight + 20);
  const range = document.createRange();
  const broken = [...document.querySelectorAll("th")].map((head) => head.lastChild).filter((text) => text &&
    [...text.data.matchAll(/[\\w:]+/g)].some((word) => {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      return range.getBoundingClientRect().height > 30;
    }));
  return [...cut, ...broken].map((one) => one.textContent);
})()"""


# Labels of a plot that lie on each other.
OVERLAPS = """[...document.querySelectorAll("svg.plot")].flatMap((plot) => {
  const texts = [...plot.querySelectorAll("text")];
  const boxes = texts.map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
  const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
  return boxes.flatMap(([name, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => shared(a, b, "left", "right") > 1 && shared(a, b, "top", "bottom") > 3)
    .map(([other]) => `${name} | ${other}`));
})"""

LOOKS = """(() => {
  const style = getComputedStyle(document.body);
  return [style.backgroundColor, style.color, document.documentElement.scrollHeight];
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    rows = run_directories.make_rows(1, queries=100)
    rows["hour"] = rows["query_time"] // 3_600_000_000 % 24
    runs = [
        run_directories.write_run(
            folder / name, rows, run_directories.predict(rows, seed, 1.0 + seed), slices=("position", "hour"),
            rejects=("label",), rejected_rows=1, terms=("logistic", "ranking"), config={"seed": seed, "of": name},
        )
        for seed, name in enumerate(("a-run-with-a-rather-long-name", "other"))
    ]  # fmt: skip
    experiment = experiment_folders.write_whole(folder / "experiment", rows)
    write_experiment(experiment)
    search = folder / "search"
    (search / "supernet").mkdir(parents=True)
    (search / "search.json").write_text(search_records.record().model_dump_json())
    lines = [record.model_dump_json() + "\n" for record in search_records.course()]
    (search / "supernet" / "controller.jsonl").write_text("".join(lines))
    shutil.copytree(experiment, search / "replay")
    write_search(search)
    return {
        "run": write_report(runs[:1], None),
        "comparison": write_report(runs, folder / "comparison.html"),
        "experiment": experiment / "report.html",
        "search": search / "report.html",
    }


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (Debian: apt-get install chromium)")
def test_pages_are_whole_in_a_browser(pages, tmp_path):
    for name, path in pages.items():
        for width in (NARROW, 1400):
            light, shown, *faults = look(path, width, tmp_path, LOOKS, CUT, BROKEN, OVERLAPS)
            assert shown["width"] <= width and [shown["cut"], *faults] == [[]] * 3, (name, width)
        # Of the wide one.
        [dark] = look(path, width, tmp_path, LOOKS, dark=True)
        assert (light[0], light[1]) == ("rgb(255, 255, 255)", "rgb(31, 41, 51)"), name
        assert dark[0] == "rgb(18, 22, 27)" and dark[2] == light[2], name
        if name in ("run", "comparison"):
            assert light[2] <= 5 * 900, f"{name} does not fit into five screens"
