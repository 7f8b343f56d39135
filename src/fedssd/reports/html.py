"""report.html: one file that opens offline, with everything the runs in some folders have to show."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from fedssd.reports.grouping import Setting, settings
from fedssd.reports.page import setting_content, table_content
from fedssd.reports.table import Table
from fedssd.runs.read import collect
from fedssd.simulation.result import Result

LARGEST = 6_000_000  # bytes of a page
THINNED = 64  # where a page is still too large with every so many rounds, nothing more can be left out


def write_report(
    folders: Sequence[Path], file: Path, title: str = "fedssd report", paired: Table | None = None
) -> Path:
    """Read every run below the folders and write the page beside them, whole or not at all.

    ``paired`` is a further table, seed by seed.
    """
    text = report(collect(folders), title, paired)
    aside = file.with_name(file.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, file)
    return file


def report(records: Sequence[Result], title: str = "fedssd report", paired: Table | None = None) -> str:
    """The page; where it would be too large, class-wise figures and matrices keep fewer rounds."""
    found, every = settings(records), 1
    text = _page(found, title, every, paired)
    while len(text.encode()) > LARGEST and every < THINNED:
        every *= 2
        text = _page(found, title, every, paired)
    return text


def _page(found: Sequence[Setting], title: str, every: int, paired: Table | None) -> str:
    shown = [setting_content(setting, every) for setting in found]
    content = {"title": title, "every": every, "settings": shown, "paired": paired and table_content(paired)}
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    parts = {
        "TITLE": escape(title),
        "STYLE": _asset("page.css"),
        "DATA": data.replace("<", "\\u003c"),  # no name in a run may end the element it stands in
        "SCRIPT": _asset("page.js"),
    }
    page = _asset("page.html")
    for name, part in parts.items():
        before, after = page.split(f"<!--{name}-->", 1)
        page = before + part + after
    return page


def _asset(name: str) -> str:
    return (resources.files("fedssd.reports") / "page" / name).read_text(encoding="utf-8")
