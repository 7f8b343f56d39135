"""A user's own method from a file: it loads and runs, and every way to get it wrong is one line that names the file."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssd
from fedssd.cli import main
from fedssd.core.contract import Local
from fedssd.errors import UserError
from fedssd.methods.custom import load_local, source_hash
from fedssd.methods.registry import LOCALS, build_local, local_kinds
from fedssd.methods.trial import Setting, try_local

DIGITS = Setting((1, 8, 8), 10, torch.float32)

HEADER = """\
from dataclasses import dataclass
import torch
from fedssd.core.contract import Local

"""

GOOD = (
    HEADER
    + '''\
@dataclass(frozen=True)
class Near(Local):
    """CE + (mu/2) |w - w_g|^2, a proximal term by a user."""

    strength = "mu"
    mu: float = 0.1

    def penalty(self, out, batch, target, params, sent, memory):
        total = 0.0
        for name, value in params.items():
            total = total + ((value - sent["weights"]["params"][name]) ** 2).sum()
        return self.mu / 2 * total
'''
)


def method(body: str, decorator: str = "@dataclass(frozen=True)", fields: str = "mu: float = 0.1") -> str:
    """A file with one method whose penalty has this body; the body's first line is line 10."""
    return (
        f"{HEADER}{decorator}\nclass Mine(Local):\n    {fields}\n\n"
        f"    def penalty(self, out, batch, target, params, sent, memory):\n        {body}\n"
    )


def tried(path: Path, name: str = "Mine", setting: Setting = DIGITS) -> type[Local]:
    """The class, after it has been loaded and tried as a run on digits does it."""
    kind = load_local(f"{path}:{name}")
    try_local(kind(), setting)
    return kind


SUM = "return 0.1 * out.logits.sum()"


def with_hook(signature: str, body: str, before: str | None = None) -> str:
    """A fine method and one more hook: ``def`` is on line 12, its body on line 13."""
    return f"{method(SUM) if before is None else before}\n    def {signature}:\n        {body}\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def put(text: str) -> Path:
        path = tmp_path / "my_method.py"
        path.write_text(text)
        return path

    return put


@pytest.mark.quick
def test_fifteen_lines_are_a_method(
    write: Callable[[str], Path], scenes: Callable[..., Any], distance: Callable[[Any, Any], float]
) -> None:
    """The user's proximal term, given our FedProx's strength, ends where FedProx ends."""
    path = write(GOOD)
    assert len(GOOD.strip().splitlines()) <= 18  # fifteen beside the imports
    local = build_local(f"{path}:Near", {"near": {"mu": 0.7}})
    assert local.name == "near"
    scene = scenes()
    ours, theirs = scene.ours(local), scene.ours(build_local("fedprox", {"fedprox": {"mu": 0.7}}))
    assert distance(ours[-1].state.weights, theirs[-1].state.weights) <= 1e-12


@pytest.mark.quick
def test_a_users_method_adds_up_with_built_in_ones(write: Callable[[str], Path], scenes: Callable[..., Any]) -> None:
    local = build_local(f"fedssd+{write(GOOD)}:Near", {"near": {"mu": 0.2}, "fedssd": {"m_max": 1.0}})
    assert scenes().ours(local)[-1].state.round == 3


@pytest.mark.quick
def test_a_users_method_has_the_checks_of_a_built_in_one(write: Callable[[str], Path]) -> None:
    path = write(GOOD)
    with pytest.raises(UserError, match="no option 'nu'"):
        build_local(f"{path}:Near", {"near": {"nu": 0.2}})
    with pytest.raises(UserError, match="expects a number"):
        build_local(f"{path}:Near", {"near": {"mu": "big"}})


# what is wrong -> the file, the line it must name (None: the file alone), what the message must say
BAD: dict[str, tuple[str, int | None, str]] = {
    "draws its own numbers": (method("return torch.rand(()) + 0 * out.logits.sum()"), None, "pure"),
    "counts its calls": (
        method(
            "Mine.calls = getattr(Mine, 'calls', 0) + 1; return out.logits.sum() * Mine.calls",
        ),
        None,
        "pure",
    ),
    "one value per class": (method("return out.logits.square()"), None, r"got shape \[5, 10\]"),
    "one value too many": (method("return torch.zeros(len(batch.y) + 1)"), None, r"got shape \[6\]"),
    "turns a tensor into a number": (method("return out.logits.sum() * out.logits.sum().item()"), 10, "vmap"),
    "branches on data": (method("return out.logits.sum() if out.logits.sum() > 0 else -out.logits.sum()"), 10, "vmap"),
    "raises": (method("return params['no such layer'].sum()"), 10, "KeyError"),
    "raises on the server": (
        method("return out.logits.sum()")
        + "\n    def broadcast(self, net, weights, memory, auxiliary):\n        return {'a': 1 / 0}\n",
        13,
        "ZeroDivisionError",
    ),
    "returns no tensor": (method("return None"), None, "AttributeError|penalty"),
    "not decorated": (method("return self.mu * out.logits.sum()", decorator="#"), None, "frozen dataclass"),
    "not frozen": (method("return self.mu * out.logits.sum()", decorator="@dataclass"), 5, "frozen"),
    "an option without a default": (method("return self.mu * out.logits.sum()", fields="mu: float"), None, "mu"),
    "does not parse": (method("return ("), 10, "does not load"),
    "raises when imported": (HEADER + "import no_such_package_anywhere\n", 5, "no_such_package_anywhere"),
    "another class": (GOOD, None, "called 'Mine', found Near"),
    "exits when imported": (HEADER + "import sys\nsys.exit(3)\n", 6, "sys.exit"),
    "a tuple as an option": (method(SUM, fields="mu: tuple = (1.0, 2.0)"), None, "'mu' of Mine .*tuple"),
    "no value as an option": (method(SUM, fields="mu: object = None"), None, "'mu' of Mine .*NoneType"),
    "a made default": (
        HEADER + "from dataclasses import field\n" + method(SUM, fields="mu: list = field(default_factory=list)"),
        None,
        "'mu' of Mine .*default_factory",
    ),
    "a float declared and an int given": (method(SUM, fields="mu: float = 1"), None, "'mu' of Mine is declared float"),
    "a strength that is no option": (method(SUM, fields="strength = 'nu'; mu: float = 0.1"), None, "'nu'"),
    "uses an auxiliary set it does not ask for": (
        with_hook("broadcast(self, net, weights, memory, auxiliary)", "return {'a': auxiliary.x.mean()}"),
        13,
        "needs_auxiliary = True",
    ),
    "broadcasts over the weights": (
        with_hook("broadcast(self, net, weights, memory, auxiliary)", "return {'weights': weights}"),
        12,
        "broadcast returns the key 'weights'",
    ),
    "broadcasts a list": (
        with_hook("broadcast(self, net, weights, memory, auxiliary)", "return [1]"),
        12,
        "broadcast must return a dictionary",
    ),
    "a memory of another shape": (
        with_hook("memory(self, sent)", "return {'a': torch.zeros(2)}")
        + with_hook("finish(self, net, weights, sent, memory, data, work)", "return {'a': torch.zeros(3)}, {}", ""),
        15,
        r"finish returns a memory unlike memory\(sent\): expected \{'a': \[2\]\}, got \{'a': \[3\]\}",
    ),
    "a memory with another key": (
        with_hook("finish(self, net, weights, sent, memory, data, work)", "return {'a': torch.zeros(3)}, {}"),
        12,
        r"expected \{\}, got",
    ),
    "no report": (
        with_hook("finish(self, net, weights, sent, memory, data, work)", "return memory"),
        12,
        r"finish must return a pair",
    ),
    "uploads half of the weights": (
        with_hook("upload(self, net, weights, sent, memory)", "return weights['params']"),
        12,
        "upload must return a tree like the weights",
    ),
    "uploads numbers": (
        with_hook("upload(self, net, weights, sent, memory)", "return {'a': 1.0}"),
        12,
        "upload must return tensors in dictionaries, got float at 'a'",
    ),
    "starts elsewhere than at weights": (
        with_hook("start(self, sent, memory)", "return sent['weights']['params']"),
        12,
        r"start must return a tree like the weights: expected \{'buffers': \{\}, 'params/head.bias': \[10\]",
    ),
    "starts at half of the weights": (
        with_hook("start(self, sent, memory)", "return {'params': sent['weights']['params']}"),
        12,
        "start must return a tree like the weights",
    ),
    "targets that are no tree": (
        with_hook("targets(self, net, sent, memory, batch)", "return net(sent['weights'], batch.x)"),
        12,
        "targets must return tensors in dictionaries, got Outputs",
    ),
    "targets that are numbers": (
        with_hook("targets(self, net, sent, memory, batch)", "return {'t': 3.0}"),
        12,
        "targets must return tensors in dictionaries, got float at 't'",
    ),
    "absorbs nothing": (
        with_hook("absorb(self, memory, weights, reports)", "return None"),
        12,
        "absorb must return tensors in dictionaries, got NoneType",
    ),
    "distils a list": (with_hook("distilled(self, batch, target)", "return [1]"), 12, "must return a dictionary, got"),
    "distils too little": (
        with_hook("distilled(self, batch, target)", "return {'a': torch.zeros(3)}"),
        12,
        r"distilled must return one value per sample \[5\] in 'a', got shape \[3\]",
    ),
    "reads data it does not ask for": (
        with_hook("finish(self, net, weights, sent, memory, data, work)", "return memory, {'n': data.x.sum()}"),
        13,
        r"data is None: set reads_data = True to get it",
    ),
    "a name that is a number": (method(SUM, fields="name = 5; mu: float = 0.1"), 5, "name of Mine .* got 5"),
    "a name that is a path": (
        method(SUM, fields="name = 'my loss/../x'; mu: float = 0.1"),
        5,
        "name of Mine expects letters, digits, - and _, got 'my loss/../x'",
    ),
    "refuses its own defaults": (
        with_hook("__post_init__(self)", "raise TypeError('mu')"),
        13,
        "Mine fails with its default options: TypeError: mu",
    ),
    "upload raises": (with_hook("upload(self, net, weights, sent, memory)", "return 1 / 0"), 13, "ZeroDivisionError"),
    "not a method": (HEADER + "class Mine:\n    pass\n", None, "subclass of fedssd.Local"),
    "empty": ("", None, "found none"),
}


@pytest.mark.quick
@pytest.mark.parametrize("wrong", BAD)
def test_a_wrong_method_is_one_line_that_names_the_file(write: Callable[[str], Path], wrong: str) -> None:
    text, line, says = BAD[wrong]
    path = write(text)
    with pytest.raises(UserError) as caught:
        tried(path)
    message = str(caught.value)
    assert "\n" not in message
    where = f"{path}:{line}:" if line else f"{path}"
    assert message.startswith(where), message
    assert re.search(says, message.removeprefix(str(path))), message


@pytest.mark.quick
def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "nowhere.py"))):
        build_local(f"{tmp_path / 'nowhere.py'}:Mine")


@pytest.mark.quick
def test_an_edited_file_is_read_again(write: Callable[[str], Path]) -> None:
    """A notebook: same path, same process, an edit of the same length within the same second."""
    path = write(GOOD)
    first = load_local(f"{path}:Near")
    assert load_local(f"{path}:Near") is first
    write(GOOD.replace("mu: float = 0.1", "mu: float = 0.9"))
    assert vars(build_local(f"{path}:Near")) == {"mu": 0.9}
    write(method("return params['no such layer'].sum()"))
    with pytest.raises(UserError, match="KeyError"):
        tried(path)
    write(GOOD)
    assert vars(build_local(f"{path}:Near")) == {"mu": 0.1}


@pytest.mark.quick
def test_an_interrupt_while_loading_is_an_interrupt(write: Callable[[str], Path]) -> None:
    path = write("raise KeyboardInterrupt\n")
    for _ in range(2):  # nothing half-loaded stays behind
        with pytest.raises(KeyboardInterrupt):
            load_local(f"{path}:Mine")


OWN_MODEL = """
from dataclasses import dataclass
from typing import ClassVar

from fedssd import Local


@dataclass(frozen=True)
class Loss(Local):
    shares_weights: ClassVar[bool] = False

    def memory(self, sent):
        return {KEY: sent["weights"]}

    def start(self, sent, memory):
        return memory[KEY]

    def finish(self, net, weights, sent, memory, data, work):
        return {KEY: weights}, {}

    def upload(self, net, weights, sent, memory):
        return {}
"""


def test_a_method_without_shared_weights_keeps_its_model_under_a_known_name(write: Callable[[str], Path]) -> None:
    result = fedssd.run(f"{write(OWN_MODEL.replace('KEY', repr('model')))}:Loss", rounds=1, epochs=1, auxiliary=8)
    assert result.summary["bytes_up"] == result.summary["bytes_down"] == 0
    with pytest.raises(UserError, match="under 'model'"):
        tried(write(OWN_MODEL.replace("KEY", repr("mine"))), "Loss")


@pytest.mark.quick
def test_a_start_of_ones_own_may_upload_another_tree(write: Callable[[str], Path]) -> None:
    text = with_hook("start(self, sent, memory)", "return sent['weights']")
    text += with_hook("upload(self, net, weights, sent, memory)", "return weights['params']", "")
    assert tried(write(text)).name == "mine"


@pytest.mark.quick
def test_a_method_that_asks_for_an_auxiliary_set_gets_one(write: Callable[[str], Path]) -> None:
    text = with_hook("broadcast(self, net, weights, memory, auxiliary)", "return {'a': auxiliary.x.mean()}")
    path = write(text.replace("mu: float", "needs_auxiliary = True; mu: float"))
    assert tried(path).needs_auxiliary


@pytest.mark.quick
def test_a_plus_in_a_path_is_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "c++ and more+"
    folder.mkdir()
    (folder / "a+b.py").write_text(GOOD)
    monkeypatch.chdir(folder)
    for path in (folder / "a+b.py", "a+b.py", "./a+b.py"):
        assert [kind.name for kind in local_kinds(f"{path}:Near")] == ["near"]
        assert [kind.name for kind in local_kinds(f"fedssd+{path}:Near + fedprox")] == ["fedssd", "near", "fedprox"]
    with pytest.raises(UserError, match="unknown method 'nothing'"):
        local_kinds(f"nothing+{folder / 'a+b.py'}:Near")
    with pytest.raises(UserError, match=re.escape(f"{folder / 'a+c.py'}' does not exist")):
        local_kinds(f"{folder / 'a+c.py'}:Near")


@pytest.mark.quick
def test_a_number_no_float_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match="mu expects a finite number"):
        build_local("fedprox", {"fedprox": {"mu": 10**5000}})


@pytest.mark.quick
@pytest.mark.parametrize(
    "body",
    [
        "return batch.x.mean(dim=(1, 2, 3)) * out.logits.sum(-1)",
        "return (out.logits @ torch.eye(out.logits.shape[-1])).square().sum(-1)",
        "return (out.logits * torch.ones(10)).sum(-1)",
        "return torch.full((), 1e-4) * out.logits.softmax(-1).log().sum(-1)",
    ],
    ids=["images", "their precision", "their classes", "a logarithm"],
)
def test_it_is_tried_on_what_the_run_has(write: Callable[[str], Path], body: str) -> None:
    assert tried(write(method(body))).name == "mine"


@pytest.mark.quick
def test_what_fits_one_dataset_is_refused_on_another(write: Callable[[str], Path]) -> None:
    path = write(method("return (out.logits * torch.ones(10)).sum(-1)"))
    with pytest.raises(UserError, match=r"my_method.py:10: Mine fails in one plain local round: .* \(100\)"):
        tried(path, setting=DIGITS._replace(classes=100))


@pytest.mark.parametrize("name", sorted({*LOCALS} - {"fd"}))  # whose memory grows in its second round
@pytest.mark.parametrize(
    "setting",
    [DIGITS, Setting((3, 32, 32), 100, torch.float32), Setting((7,), 2, torch.float64)],
    ids=["digits", "cifar100", "rows"],
)
def test_every_method_of_ours_would_pass_as_a_users(write: Callable[[str], Path], name: str, setting: Setting) -> None:
    """They train, so a check that refuses one of them is too strict."""
    base = LOCALS[name]
    text = f"{HEADER}from {base.__module__} import {base.__name__} as Base\n\n@dataclass(frozen=True)\n"
    assert tried(write(f"{text}class Mine(Base):\n    pass\n"), setting=setting).name == "mine"


@pytest.mark.quick
def test_a_check_takes_well_under_a_second(write: Callable[[str], Path]) -> None:
    path = write(GOOD)
    tried(path, "Near")  # what torch does once
    began = time.monotonic()
    tried(path, "Near", Setting((3, 64, 64), 200, torch.float32))
    assert time.monotonic() - began < 0.5


@pytest.mark.quick
def test_numbers_of_a_users_method_may_be_negative(write: Callable[[str], Path]) -> None:
    path = write(GOOD)
    assert vars(build_local(f"{path}:Near", {"near": {"mu": -0.5}})) == {"mu": -0.5}
    with pytest.raises(UserError, match=r"near.mu expects a finite number, got inf"):
        build_local(f"{path}:Near", {"near": {"mu": float("inf")}})
    with pytest.raises(UserError, match=r"fedprox.mu expects a finite number that is not negative, got -0.5"):
        build_local("fedprox", {"fedprox": {"mu": -0.5}})


@pytest.mark.quick
def test_a_value_the_method_cannot_take_is_one_line(write: Callable[[str], Path]) -> None:
    path = write(with_hook("__post_init__(self)", "{0.1: 1, 0.2: 2}[self.mu]"))
    assert vars(build_local(f"{path}:Mine", {"mine": {"mu": 0.2}})) == {"mu": 0.2}
    with pytest.raises(UserError, match=r"my_method.py:13: Mine.__post_init__ fails with the options given: KeyError"):
        build_local(f"{path}:Mine", {"mine": {"mu": 0.3}})


@pytest.mark.quick
@pytest.mark.parametrize("name", ["FedSSD", "Median"])
def test_a_name_of_ours_is_taken(write: Callable[[str], Path], name: str) -> None:
    """Options go by the name, so that two halves cannot share one."""
    path = write(GOOD.replace("class Near", f"class {name}"))
    with pytest.raises(UserError, match=f"my_method.py:5: name of {name} .* not taken, got '{name.lower()}'"):
        build_local(f"{path}:{name}")
    own = write(GOOD.replace("class Near(Local):", f"class {name}(Local):\n    name = 'own'"))
    assert build_local(f"{own}:{name}").name == "own"


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


REFUSAL = """
def refuse(count):
    if count > 1:
        raise RuntimeError("enough\\nof it")
"""
LATE = """
from dataclasses import dataclass

import torch
from refusal import refuse

from fedssd import Local


@dataclass(frozen=True)
class Late(Local):
    def server_memory(self, weights):
        return {"rounds": torch.zeros(())}

    def broadcast(self, net, weights, memory, auxiliary):
        refuse(memory["rounds"])
        return {}

    def absorb(self, memory, weights, reports):
        return {"rounds": memory["rounds"] + 1}
"""


@pytest.mark.parametrize("workers", [1, 2], ids=["in this process", "in processes"])
def test_an_error_in_training_names_line_hook_and_round(
    tmp_path: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server has counted 2 rounds when it opens the third; the file beside the method's is found in any process."""
    path, helper = tmp_path / "late.py", tmp_path / "refusal.py"
    path.write_text(LATE)
    helper.write_text(REFUSAL)
    short = ["--rounds=4", "--epochs=1", "--quiet", f"--out={tmp_path / 'out'}"]
    assert main(["compare", f"--methods=fedavg,{path}:Late", "--seeds=0", f"--workers={workers}", *short]) == 2
    assert capsys.readouterr().err == f"fedssd: {helper}:4: Late.broadcast fails in round 3: RuntimeError: enough\n"


@pytest.mark.quick
def test_an_error_in_training_keeps_its_cause(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "refusal.py").write_text(REFUSAL)
    with pytest.raises(UserError) as caught:
        fedssd.run(f"{tmp_path / 'late.py'}:Late", rounds=4, epochs=1, auxiliary=8)
    assert isinstance(caught.value.__cause__, RuntimeError)
