"""The pages in a real browser: nothing is cut, every link leads somewhere, and the script does its part."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

import experiment_folders
import run_directories
import search_records
from ctr.eval.report import write_report
from ctr.experiments.report.write import write_experiment
from ctr.search.report import write_search

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
_SECONDS = 60


class Browser:
    """One tab, spoken to over a pipe. ``errors`` are what its console and its scripts complain of."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # Chromium reads commands from file 3 and writes answers to file 4, each ended by a zero byte.
        command = f'exec "$@" 3<&{read_end} 4>&{write_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_end, write_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._held, self._numbers, self._events = b"", itertools.count(1), list[dict[str, Any]]()
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._process.kill()
        self._process.wait()
        os.close(self._from)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Calls a method of the debugging protocol; fails where Chromium does."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, path: Path, width: int, height: int = 900) -> None:
        """Opens a file in a window of that size, and waits until it is there."""
        self._events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def run(self, script: str) -> Any:
        """Value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    @property
    def errors(self) -> list[dict[str, Any]]:
        self.run("0")  # what came before it is here now
        kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [event for event in self._events if event["method"] in kinds]

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            more = os.read(self._from, 1 << 16)
            assert more, "Chromium ended"
            self._held += more
        message, _, self._held = self._held.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        if "method" in answer:
            self._events.append(answer)
        return answer


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
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    rows = run_directories.make_rows(1, queries=100)
    runs = [
        run_directories.write_run(
            folder / name, rows, run_directories.predict(rows, seed, 1.0 + seed), slices=("position",),
            rejects=("label",), rejected_rows=1, terms=("logistic", "ranking"), config={"seed": seed, "of": name},
            spectra=[{"deep/0/w": {"smallest": 1e-6, "largest": 2.0, "condition": 9.0}}] * 3,
        )
        for seed, name in enumerate(("a-run-with-a-rather-long-name", "other"))
    ]  # fmt: skip
    for run in runs:
        weights = [{"name": "deep_0", "shape": [3, 40], "singular_values": [2.0, 1.0, 0.5]}]
        (run / "weight_spectra.json").write_text(json.dumps({"weights": weights}))
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
    with Browser(tmp_path) as browser:
        for name, path in pages.items():
            browser.open(path, NARROW)
            found = browser.run(CUT)
            assert found["width"] <= NARROW and found["cut"] == [], name
            assert browser.run(DEAD) == [], name
            assert browser.run(POINTED), name
            browser.open(path, 1300)
            assert browser.run(CUT)["cut"] == [] and browser.run(DEAD) == [], name
            if name in ("comparison", "experiment"):
                (before, hidden, after), dark = browser.run(SWITCHES).values()
                assert hidden == 0 < before == after and dark, name
            assert browser.errors == [], name
