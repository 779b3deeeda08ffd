"""The report in a real browser: no complaint, no request, toggles, keyboard, phone and dark.

Needs Debian's chromium (`make test-browser` installs it); skipped where it is not. Pictures are
kept in the folder FEDMEND_SCREENSHOTS names: look at them when you change the page.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("vl_convert", reason="reports need the extra fedmend[report]")
chromium = pytest.importorskip("tests.browser.chromium", reason="needs aiohttp")

from fedmend.privacy import nfdp  # noqa: E402
from fedmend.reports import page, views  # noqa: E402
from fedmend.runs.cells import Cell, Engine, run_cells  # noqa: E402  # after what may skip the file
from fedmend.runs.plan import Source  # noqa: E402
from fedmend.runs.retrace import Retracer  # noqa: E402
from tests.browser.chromium import Tab, browse  # noqa: E402
from tests.tiny import QUICK  # noqa: E402

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")

SOURCE = Source("csbm:nodes=150,classes=3,features=6", 3, "random")
DRAWN = "[...document.querySelectorAll('.chart')].filter(b => b.offsetParent !== null)"
ALL_DRAWN = f"{DRAWN}.length > 0 && {DRAWN}.every(b => b.dataset.drawn === 'yes')"
PATHS = (
    "[...document.querySelectorAll('[data-chart=\"curve-0\"] .mark-line path')]"
    ".filter(p => p.getAttribute('d')).length"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds; one record with the panels that only some methods fill."""
    out = tmp_path_factory.mktemp("runs")
    cells = [
        Cell(f"{method}/seed-{seed}", method, SOURCE, seed, {**QUICK, "rounds": 12})
        for method in ("fedavg", "local")
        for seed in (0, 1)
    ]
    assert run_cells(cells, out, Engine(workers=1)).failures == {}
    path = out / "fedavg/seed-0/record.json"
    record = json.loads(path.read_text())
    worth = nfdp(5, 15, layers=2, epochs=50, rate=0.5)
    record["privacy"] = [worth.to_account().to_dict()]
    places = [[i / 10, (i * i) % 7] for i in range(40)]
    record["generator"] = {
        "predicted": [0.2, 1.4, 2.6, 3.0, 12.0],
        "true": [0, 1, 2, 3, 11],
        "projection": {"generated": places, "true": [[y, x] for x, y in places]},
    }
    path.write_text(json.dumps(record))
    found = views.read_views(views.find_runs([out]))
    retrace = Retracer()
    for view in found:
        view.retraced = retrace(view.saved)
        assert view.retraced.confusion is not None, view.retraced.note
    text, _ = page.build(found)
    written = out / "report.html"
    page.write(written, text)
    return written


def picture(name: str, tmp_path: Path) -> Path:
    return Path(os.environ.get("FEDMEND_SCREENSHOTS", tmp_path)) / name


async def look_at_everything(tab: Tab) -> None:
    """Open every part, scroll to each chart, and wait there until it is drawn.

    A chart is drawn when it comes into view: scrolled past too quickly, it never is.
    """
    await tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    await tab.run(
        "(async () => { for (const b of document.querySelectorAll('.chart')) {"
        " if (b.offsetParent === null) continue; b.scrollIntoView();"
        " for (let i = 0; i < 500 && b.dataset.drawn !== 'yes'; i++)"
        " await new Promise(r => setTimeout(r, 60)); } scrollTo(0, 0); })()"
    )
    await tab.until(ALL_DRAWN)


def test_it_opens_offline_without_a_complaint(report: Path, tmp_path: Path) -> None:
    async def visit(tab: Tab) -> None:
        await tab.open(report, width=1200, height=1000)
        await look_at_everything(tab)
        await tab.screenshot(picture("report.png", tmp_path))
        assert tab.complaints == []
        assert tab.requests == [report.as_uri()] or {
            url.split(":")[0] for url in tab.requests[1:]
        } <= {"data"}
        assert not await tab.run("document.body.innerText.includes('could not be drawn')")
        # It could not ask even if it wanted to.
        refused = await tab.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")
        assert refused == "refused"
        for words in ("vacuous", "Confusion", "Missing neighbours", "Split hash"):
            assert await tab.run(f"document.body.innerText.includes({json.dumps(words)})"), words

    browse(tmp_path / "profile", visit)


def test_runs_are_hidden_by_mouse_and_keyboard(report: Path, tmp_path: Path) -> None:
    async def visit(tab: Tab) -> None:
        await tab.open(report, width=1200, height=1400)
        await tab.until("document.querySelector('[data-chart=\"curve-0\"]').dataset.drawn==='yes'")
        await tab.until(f"{PATHS} === 4")
        await tab.run("document.querySelector('input[data-run]').click()")
        await tab.until(f"{PATHS} === 3")
        await tab.run("document.querySelector('button[data-show=none]').click()")
        await tab.until(f"{PATHS} === 0")
        # The keyboard: Tab reaches the switches, space turns one on, arrows read a curve.
        await tab.run("document.querySelector('nav li:last-child a').focus()")
        for _ in range(12):
            await tab.press("Tab")
            if await tab.run("document.activeElement.dataset.run === 'r1'"):
                break
        await tab.press(" ")
        await tab.until(f"{PATHS} === 1")
        await tab.run("document.querySelector('[data-chart=\"curve-0\"]').focus()")
        await tab.press("ArrowLeft")
        said = await tab.run("document.getElementById('curve-0-readout').textContent")
        assert said.startswith("round 12: fedavg, seed 1 0.")
        assert tab.complaints == []

    browse(tmp_path / "profile", visit)


def test_hovering_shows_the_figures(report: Path, tmp_path: Path) -> None:
    async def visit(tab: Tab) -> None:
        await tab.open(report, width=1200, height=1400)
        await tab.until(f"{PATHS} === 4")
        x, y = await tab.run(
            "(() => { const b = document.querySelector('[data-chart=\"curve-0\"]')"
            ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        await tab.move(x, y)
        await tab.move(x + 3, y)
        await tab.until("!!document.querySelector('#vg-tooltip-element.visible')")
        said = await tab.run("document.getElementById('vg-tooltip-element').innerText")
        assert "fedavg, seed 0" in said
        assert "local, seed 1" in said

    browse(tmp_path / "profile", visit)


def test_on_a_phone_and_in_the_dark(report: Path, tmp_path: Path) -> None:
    async def visit(tab: Tab) -> None:
        await tab.open(report, width=390, height=844, dark=True)
        await look_at_everything(tab)
        await tab.screenshot(picture("report-phone-dark.png", tmp_path))
        assert await tab.run("document.documentElement.scrollWidth") <= 390
        back = "getComputedStyle(document.body).backgroundColor"
        assert await tab.run(back) == "rgb(20, 23, 27)"
        await tab.dark(False)
        await tab.until(f"{back} === 'rgb(255, 255, 255)'")
        await tab.until(ALL_DRAWN)
        assert tab.complaints == []

    browse(tmp_path / "profile", visit)


def test_hostile_names_stay_text(report: Path, tmp_path: Path) -> None:
    found = views.read_views(views.find_runs([report.parent / "fedavg"]))
    bad = "</script><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'"
    for view in found:
        view.label = bad
        data = view.record.data
        labels = {bad: 3, "']; document.title='taken'; ['": 1}
        silos = tuple(replace(silo, labels=labels) for silo in data.per_silo)
        hostile = replace(
            view.record, method=bad, dataset=bad, said=(bad,), data=replace(data, per_silo=silos)
        )
        view.saved = replace(view.saved, record=hostile)
    text, _ = page.build(found)
    written = tmp_path / "bad.html"
    page.write(written, text)

    async def visit(tab: Tab) -> None:
        await tab.open(written, width=1000, height=900)
        await look_at_everything(tab)
        assert not await tab.run("document.title === 'taken'")
        assert await tab.run("document.images.length") == 0
        assert tab.complaints == []

    browse(tmp_path / "profile", visit)
