"""The pages in a real browser: nothing is cut, every link leads somewhere, and the script does its part."""

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


def look(path, width, folder, *scripts):
    """Values of expressions in a page, in a window of that width, once it is there."""
    assert CHROMIUM is not None
    probe = PROBE % ", ".join(scripts)
    digest = base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode()
    html = path.read_text().replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    (folder / "page.html").write_text(html.replace("<title>", f"<script>{probe}</script><title>", 1))
    (folder / "frame.html").write_text(FRAME % width)
    command = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={max(width, 600)},1000",
    ]
    shown = subprocess.run(
        [*command, "--dump-dom", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = json.loads(html_module.unescape(re.search("<pre>(.*)</pre>", shown.stdout, re.DOTALL)[1]))
    assert told["errors"] == [], told
    return told["found"]


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

# Links whose target is not there, or not to be seen once they were followed.
DEAD = """(() => {
  document.documentElement.style.scrollBehavior = "auto";
  return [...document.querySelectorAll("a")].filter((link) => {
    const target = document.getElementById(link.getAttribute("href").slice(1));
    if (!target) return true;
    link.click();
    const box = target.getBoundingClientRect();
    return !box.height || box.top > window.innerHeight || box.bottom < 0;
  }).map((link) => link.href);
})()"""

# A click on the legend's second entry hides what belongs to it; a second one shows it again. Then the dark page.
SWITCHES = """(() => {
  const parts = [...document.querySelectorAll('[data-run="1"]')];
  const shown = () => parts.filter((one) => one.getClientRects().length).length;
  const entry = document.querySelector('[data-legend="1"]');
  const found = [shown()];
  for (const _ of [1, 2]) { entry.click(); found.push(shown()); }
  const color = () => getComputedStyle(document.body).backgroundColor;
  const before = color();
  document.querySelector("button.theme").click();
  return {found, dark: before !== color()};
})()"""

# The point of a plot that lies under the pointer, and its words.
POINTED = """(() => {
  const plot = document.querySelector("svg[data-hover]");
  plot.scrollIntoView();
  const box = plot.getBoundingClientRect();
  const at = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true};
  plot.dispatchEvent(new PointerEvent("pointermove", at));
  const tip = document.querySelector(".tip");
  return tip.hidden ? "" : tip.textContent;
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    rows = run_directories.make_rows(1, queries=100)
    runs = [
        run_directories.write_run(
            folder / name, rows, run_directories.predict(rows, seed, 1.0 + seed), slices=("position",),
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
        (narrow, dead, pointed) = look(path, NARROW, tmp_path, CUT, DEAD, POINTED)
        assert narrow["width"] <= NARROW and narrow["cut"] == dead == [] and pointed, name
        switches = [SWITCHES] if name in ("comparison", "experiment") else []
        wide, dead, *switched = look(path, 1300, tmp_path, CUT, DEAD, *switches)
        assert wide["cut"] == dead == [], name
        for one in switched:
            before, hidden, after = one["found"]
            assert hidden == 0 < before == after and one["dark"], name
