"""The pages: every link leads somewhere, and what they say of the tree is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a link into a page can name: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def broken(page: Path) -> list[str]:
    """A page's links to files that are not there, or to headings that they do not have."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue  # elsewhere: tests use no network
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_nowhere_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One, two\n[a](#one-two) [b](#three) [c](page.md#one-two) [d](none.md)\n")
    assert broken(page) == ["#three", "none.md"]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_file_of_the_project_that_is_named_is_there(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|benchmarks|tools)/[\w./-]+)`", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_room_of_the_house_is_on_the_plan() -> None:
    plan = (ROOT / "docs/architecture.md").read_text()
    tree = plan.split("```")[1]
    source = ROOT / "src/fedmend"
    rooms = set(re.findall(r"^  (\w+(?:/|\.py)) ", tree, flags=re.MULTILINE))
    packages = {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    # A folder of modules is a room too, with or without an __init__.
    packages |= {f"{path.parent.name}/" for path in source.glob("*/*.py")}
    assert rooms == packages | {path.name for path in source.glob("*.py")}


def test_where_something_new_goes_is_there() -> None:
    plan = (ROOT / "docs/architecture.md").read_text()
    table = plan.split("## Where something new goes")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| a")]
    places = [place for _, cell in rows for place in re.findall(r"`([a-z_]+/[\w./]*)`", cell)]
    six = "a metric, a loss, a personalised method, a noise mechanism, an input format, an engine"
    assert {what.strip() for what, _ in rows} >= set(six.split(", "))
    assert len(places) >= len(rows)
    assert [each for each in places if not (ROOT / "src/fedmend" / each).exists()] == []
