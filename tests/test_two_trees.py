"""How two source trees' answers are compared: a number that moved is found, and words that moved are not."""

from __future__ import annotations

from pathlib import Path

import same_numbers
import tree_pages
from tree_pages import as_found, as_it_is, tables
from two_trees import Case, Tree, differences, flat

TABLE = """
| method | seeds | accuracy |
| --- | ---: | ---: |
| FedAvg | 3 | 70.15 ± 0.45 |
| FedSSD | 3 | 71.20 −0.34 |
"""
OTHER = """
| half | accuracy | p | seeds |
| --- | ---: | ---: | ---: |
| FedSSD, tuned | 3 | 71.2 | 0.04 | -0.34 |
| FedAvg | 3 | 70.16 | 0.5 | 0.45 |
"""


def tree(folder: Path, page: str) -> Tree:
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "page.md").write_text(f"<!-- table: x -->\n{page}<!-- end of table -->\n", encoding="utf-8")
    return Tree(folder.name, folder, folder)


def test_what_is_new_in_the_head_is_no_difference() -> None:
    base, head = flat({"a": 1, "seconds": 3, "b": {"c": [1.0, 2.0]}}), flat({"a": 1, "b": {"c": [1.0, 2.5]}, "d": 4})
    assert differences(base, head) == ["b.c: [1.0, 2.0] → [1.0, 2.5]"]
    assert differences(flat({"a": float("nan")}), flat({"a": float("nan")})) == []
    assert differences({"a": "1"}, {}) == ["a: 1 → nothing"]


def test_a_table_is_found_in_other_words_and_a_number_that_moved_is_said(tmp_path: Path) -> None:
    base, head = tree(tmp_path / "base", TABLE), tree(tmp_path / "head", OTHER)
    (table,) = tree_pages.generated(base)
    assert differences(as_it_is(table), as_found(table, base)) == []
    (said,) = differences(as_it_is(table), as_found(table, head))
    assert said == "row 1 (FedAvg): 3 70.15 0.45 → 3 70.16 0.5 0.45 in docs/page.md 1"


def test_numbers_of_a_row_are_read_as_they_are_written() -> None:
    (table,) = tables("page", "\n| a | b |\n| --- | --- |\n| w2 | 1,234.5 −0.34 [+0.1, 1e-3] |\n| none | – |\n")
    assert table.rows == (("w2", (1234.5, -0.34, 0.1, 0.001)),)


def test_two_runs_with_the_same_weights_are_said() -> None:
    def verdict(name: str, bits: str) -> same_numbers.Verdict:
        case = Case("a", name, lambda _: {}, lambda _: {})
        return same_numbers.Verdict(case, [], found={"weights.w": bits})

    apart = [verdict("fedavg reference", "1"), verdict("fedssd reference", "2"), verdict("fedavg vectorised", "1")]
    assert list(same_numbers.collisions(apart)) == []
    (said,) = same_numbers.collisions([*apart, verdict("pfnm reference", "2")])
    assert "fedssd = pfnm" in said
