"""A user's own method from a file: it loads and runs, and every way to get it wrong is one line that names the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from user_methods import GOOD, HEADER, SUM, method, tried, with_hook

import fedssd
from fedssd.errors import UserError
from fedssd.methods.custom import load_local
from fedssd.methods.registry import build_local, local_kinds


@pytest.mark.quick
def test_fifteen_lines_are_a_method(
    write_method: Callable[[str], Path], scenes: Callable[..., Any], distance: Callable[[Any, Any], float]
) -> None:
    """The user's proximal term, given our FedProx's strength, ends where FedProx ends."""
    path = write_method(GOOD)
    assert len(GOOD.strip().splitlines()) <= 18  # fifteen beside the imports
    local = build_local(f"{path}:Near", {"near": {"mu": 0.7}})
    assert local.name == "near"
    scene = scenes()
    ours, theirs = scene.ours(local), scene.ours(build_local("fedprox", {"fedprox": {"mu": 0.7}}))
    assert distance(ours[-1].state.weights, theirs[-1].state.weights) <= 1e-12


@pytest.mark.quick
def test_a_users_method_adds_up_with_built_in_ones(
    write_method: Callable[[str], Path], scenes: Callable[..., Any]
) -> None:
    local = build_local(f"fedssd+{write_method(GOOD)}:Near", {"near": {"mu": 0.2}, "fedssd": {"m_max": 1.0}})
    assert scenes().ours(local)[-1].state.round == 3


@pytest.mark.quick
def test_a_users_method_has_the_checks_of_a_built_in_one(write_method: Callable[[str], Path]) -> None:
    path = write_method(GOOD)
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
def test_a_wrong_method_is_one_line_that_names_the_file(write_method: Callable[[str], Path], wrong: str) -> None:
    text, line, says = BAD[wrong]
    path = write_method(text)
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
def test_an_edited_file_is_read_again(write_method: Callable[[str], Path]) -> None:
    """A notebook: same path, same process, an edit of the same length within the same second."""
    path = write_method(GOOD)
    first = load_local(f"{path}:Near")
    assert load_local(f"{path}:Near") is first
    write_method(GOOD.replace("mu: float = 0.1", "mu: float = 0.9"))
    assert vars(build_local(f"{path}:Near")) == {"mu": 0.9}
    write_method(method("return params['no such layer'].sum()"))
    with pytest.raises(UserError, match="KeyError"):
        tried(path)
    write_method(GOOD)
    assert vars(build_local(f"{path}:Near")) == {"mu": 0.1}


@pytest.mark.quick
def test_an_interrupt_while_loading_is_an_interrupt(write_method: Callable[[str], Path]) -> None:
    path = write_method("raise KeyboardInterrupt\n")
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


def test_a_method_without_shared_weights_keeps_its_model_under_a_known_name(
    write_method: Callable[[str], Path],
) -> None:
    result = fedssd.run(
        f"{write_method(OWN_MODEL.replace('KEY', repr('model')))}:Loss", rounds=1, epochs=1, auxiliary=8
    )
    assert result.summary.bytes_up == result.summary.bytes_down == 0
    with pytest.raises(UserError, match="under 'model'"):
        tried(write_method(OWN_MODEL.replace("KEY", repr("mine"))), "Loss")


@pytest.mark.quick
def test_a_start_of_ones_own_may_upload_another_tree(write_method: Callable[[str], Path]) -> None:
    text = with_hook("start(self, sent, memory)", "return sent['weights']")
    text += with_hook("upload(self, net, weights, sent, memory)", "return weights['params']", "")
    assert tried(write_method(text)).name == "mine"


@pytest.mark.quick
def test_a_method_that_asks_for_an_auxiliary_set_gets_one(write_method: Callable[[str], Path]) -> None:
    text = with_hook("broadcast(self, net, weights, memory, auxiliary)", "return {'a': auxiliary.x.mean()}")
    path = write_method(text.replace("mu: float", "needs_auxiliary = True; mu: float"))
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
def test_numbers_of_a_users_method_may_be_negative(write_method: Callable[[str], Path]) -> None:
    path = write_method(GOOD)
    assert vars(build_local(f"{path}:Near", {"near": {"mu": -0.5}})) == {"mu": -0.5}
    with pytest.raises(UserError, match=r"near.mu expects a finite number, got inf"):
        build_local(f"{path}:Near", {"near": {"mu": float("inf")}})
    with pytest.raises(UserError, match=r"fedprox.mu expects a finite number that is not negative, got -0.5"):
        build_local("fedprox", {"fedprox": {"mu": -0.5}})


@pytest.mark.quick
def test_a_value_the_method_cannot_take_is_one_line(write_method: Callable[[str], Path]) -> None:
    path = write_method(with_hook("__post_init__(self)", "{0.1: 1, 0.2: 2}[self.mu]"))
    assert vars(build_local(f"{path}:Mine", {"mine": {"mu": 0.2}})) == {"mu": 0.2}
    with pytest.raises(UserError, match=r"my_method.py:13: Mine.__post_init__ fails with the options given: KeyError"):
        build_local(f"{path}:Mine", {"mine": {"mu": 0.3}})


@pytest.mark.quick
@pytest.mark.parametrize("name", ["FedSSD", "Median"])
def test_a_name_of_ours_is_taken(write_method: Callable[[str], Path], name: str) -> None:
    """Options go by the name, so that two halves cannot share one."""
    path = write_method(GOOD.replace("class Near", f"class {name}"))
    with pytest.raises(UserError, match=f"my_method.py:5: name of {name} .* not taken, got '{name.lower()}'"):
        build_local(f"{path}:{name}")
    own = write_method(GOOD.replace("class Near(Local):", f"class {name}(Local):\n    name = 'own'"))
    assert build_local(f"{own}:{name}").name == "own"
