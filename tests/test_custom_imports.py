"""What a user's method imports from its folder: found there, seen when it changes, and nobody else's."""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from user_methods import SUM, method, tried

from fedssd.core.contract import Local
from fedssd.errors import UserError
from fedssd.methods.custom import load_local, source_hash

USES_HELPER = method("return factor() * out.logits.sum()").replace(
    "import torch", "import torch\nfrom helper import factor"
)


def package(folder: Path, number: float) -> Path:
    """A method whose factor comes from a module beside it, which has the number from a package below."""
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "values.py").write_text(f"NUMBER = {number}\n")
    (folder / "helper.py").write_text("from inner import values\n\ndef factor():\n    return values.NUMBER\n")
    (folder / "mine.py").write_text(USES_HELPER)
    return folder / "mine.py"


def factor_of(kind: type[Local]) -> float:
    """What the helper gives it."""
    found: float = vars(sys.modules[kind.__module__])["factor"]()
    return found


@pytest.mark.quick
def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    """Wherever it lies, and whatever another folder calls its own; nothing is left in the folder or on the path."""
    search = list(sys.path)
    first, second = package(tmp_path / "a", 2.0), package(tmp_path / "b", 3.0)
    assert [factor_of(tried(path)) for path in (first, second, first)] == [2.0, 3.0, 2.0]
    assert source_hash(tried(first)) != source_hash(tried(second))
    assert sys.path == search
    assert "helper" not in sys.modules  # which might be anybody's
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.quick
@pytest.mark.parametrize("whole", [True, False], ids=["a package", "a folder"])
@pytest.mark.parametrize("inside", [True, False], ids=["from its folder", "from elsewhere"])
def test_a_changed_import_is_another_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool, inside: bool
) -> None:
    """Of whatever depth, and within the same second; back again it is the same method."""
    path = package(tmp_path / "a", 2.0)
    if whole:
        (tmp_path / "a" / "inner" / "__init__.py").touch()
    if inside:
        monkeypatch.chdir(tmp_path / "a")
    kind = tried(path)
    then = source_hash(kind)
    assert tried(path) is kind
    (tmp_path / "a" / "inner" / "values.py").write_text("NUMBER = 5.0\n")
    assert factor_of(tried(path)) == 5.0
    assert source_hash(tried(path)) != then
    (tmp_path / "a" / "inner" / "values.py").write_text("NUMBER = 2.0\n")
    assert source_hash(tried(path)) == then


@pytest.mark.quick
@pytest.mark.parametrize("place", [".venv/lib/site-packages", "libs"])
def test_what_is_installed_below_the_folder_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A virtual environment may lie beside the file, or a folder of packages, some of which cannot be loaded twice."""
    installed = tmp_path / place
    installed.mkdir(parents=True)
    monkeypatch.syspath_prepend(installed)
    path = tmp_path / "mine.py"
    path.write_text(method(SUM).replace("import torch", "import torch\nimport installed_here"))
    found = set()
    for text in ("A = 1\n", "A = 2\n"):
        (installed / "installed_here.py").write_text(text)
        found.add(source_hash(load_local(f"{path}:Mine")))
    assert len(found) == 1
    theirs = sys.modules.pop("installed_here")
    assert vars(theirs)["A"] == 1


@pytest.mark.quick
def test_an_imported_link_is_what_it_leads_to(tmp_path: Path) -> None:
    """Two folders with a link of the same name; what is behind it changes."""
    found = []
    for name, number in (("a", 2.0), ("b", 3.0)):
        path = package(tmp_path / name, number)
        (tmp_path / f"{name}.py").write_text(f"def factor():\n    return {number}\n")
        (tmp_path / name / "helper.py").unlink()
        (tmp_path / name / "helper.py").symlink_to(tmp_path / f"{name}.py")
        found.append(factor_of(tried(path)))
    assert found == [2.0, 3.0]
    then = source_hash(tried(path))
    (tmp_path / "b.py").write_text("def factor():\n    return 4.0\n")
    assert factor_of(tried(path)) == 4.0
    assert source_hash(tried(path)) != then


def test_methods_are_loaded_from_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two folders whose helpers have one name, by a script that lies beside one of them."""
    paths = [package(tmp_path / name, number) for name, number in (("a", 2.0), ("b", 3.0))]
    script = type(sys)("__mp_main__")
    script.__file__ = str(tmp_path / "a" / "script.py")
    Path(script.__file__).touch()
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    places = [paths[number % 2] for number in range(40)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda path: factor_of(load_local(f"{path}:Mine")), places)) == [2.0, 3.0] * 20
    assert sys.modules["__mp_main__"] is script


@pytest.mark.quick
def test_a_module_that_others_had_loaded_stays_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook beside the file has imported the helper, and edits it."""
    path = package(tmp_path / "a", 2.0)
    monkeypatch.syspath_prepend(tmp_path / "a")
    theirs = importlib.import_module("helper")
    (tmp_path / "a" / "helper.py").write_text("def factor():\n    return 7.0\n")
    assert factor_of(tried(path)) == 7.0
    assert sys.modules["helper"] is theirs
    for name in ("helper", "inner", "inner.values"):
        del sys.modules[name]


@pytest.mark.quick
def test_an_import_inside_a_hook_is_refused(tmp_path: Path) -> None:
    """It would come after the files were read, so that its changes went unnoticed."""
    path = package(tmp_path / "a", 2.0)
    path.write_text(method("import helper; return helper.factor() * out.logits.sum()"))
    for _ in range(2):
        with pytest.raises(UserError, match=r"mine.py:9: Mine imports helper inside a hook: import it at the top"):
            tried(path)


@pytest.mark.quick
def test_an_import_is_no_less_inside_a_hook_where_the_file_has_it_at_the_top(tmp_path: Path) -> None:
    """What it gets depends on which folder's module of that name was loaded last."""
    path = package(tmp_path / "a", 2.0)
    path.write_text(USES_HELPER.replace("return factor()", "import helper; return helper.factor()"))
    with pytest.raises(UserError, match=r"mine.py:10: Mine imports helper inside a hook"):
        tried(path)


@pytest.mark.quick
def test_a_mistake_in_an_imported_file_is_named(tmp_path: Path) -> None:
    path = package(tmp_path / "a", 2.0)
    helper = tmp_path / "a" / "helper.py"
    for text, says in (("def factor(:\n", "does not load"), ("1 / 0\n", "division"), ("factor = 3\n", "'int'")):
        helper.write_text(text)
        with pytest.raises(UserError, match=says) as caught:
            tried(path)
        place = f"{path}:11" if "factor = 3" in text else f"{helper}:1"
        assert str(caught.value).startswith(f"{place}: ")
