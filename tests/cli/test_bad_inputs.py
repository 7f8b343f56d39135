"""Whatever a user can get wrong: one line on stderr that names it, status 2, no traceback, nothing left behind."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedssd.cli import main

FAST = ["--engine=reference", "--rounds=1", "--epochs=1"]


class Calls:
    """What a malicious pickle does when it is opened."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch called",)


def _arrays(path: Path, x: np.ndarray, y: np.ndarray) -> None:  # type: ignore[type-arg]
    np.savez(path, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])


def _archive(path: Path, content: bytes) -> None:
    """Something that calls itself CIFAR-10 and holds these bytes in every batch."""
    with tarfile.open(path, "w:gz") as archive:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files a user might bring, each wrong in one way."""
    folder = tmp_path_factory.mktemp("inputs")
    features = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    labels = np.arange(60) % 3
    holes = features.copy()
    holes[7, 2] = np.nan
    _arrays(folder / "good.npz", features, labels)
    _arrays(folder / "nan.npz", holes, labels)
    _arrays(folder / "negative.npz", features, labels - 1)
    _arrays(folder / "gap.npz", features, np.where(labels == 1, 2, labels))  # class 1 has no samples
    np.savez(folder / "range.npz", x=features, y=labels, classes=np.array(["one", "two"]))
    np.savez(folder / "objects.npz", x=np.array([Calls()], dtype=object), y=np.array([0]))
    np.savez(folder / "lengths.npz", x=features, y=labels[:-1])
    np.savez(folder / "keys.npz", pictures=features)
    (folder / "half.npz").write_bytes((folder / "good.npz").read_bytes()[:200])
    (folder / "words.csv").write_text("a,b,label\n1,blue,x\n2,red,y\n")
    (folder / "unlabelled.csv").write_text("age,bmi,charges\n" + "".join(f"{n},{n}.5,{n % 2}\n" for n in range(40)))
    (folder / "ragged.csv").write_text("a,b,label\n1,2,x\n1,x\n")
    (folder / "empty.csv").write_text("")
    (folder / "no_images").mkdir()
    (folder / "images" / "cat").mkdir(parents=True)
    (folder / "images" / "dog").mkdir()
    for number in range(5):  # dog stays empty
        Image.new("RGB", (8, 8)).save(folder / "images" / "cat" / f"{number}.png")
    _archive(folder / "evil.tar.gz", pickle.dumps(Calls(), protocol=2))
    _archive(folder / "tampered.tar.gz", pickle.dumps({"data": b"", "labels": []}, protocol=2))
    (folder / "truncated.tar.gz").write_bytes((folder / "evil.tar.gz").read_bytes()[:150])
    (folder / "broken.toml").write_text("rounds = = 3\n")
    (folder / "key.toml").write_text("round = 3\n")
    (folder / "kind.toml").write_text('rounds = "many"\n')
    (folder / "option.toml").write_text("[options.fedssd]\nm_mex = 0.1\n")
    (folder / "table.toml").write_text("[training]\nrounds = 3\n")
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "deep.toml").write_text(f"data = {'[' * 5000}{']' * 5000}\n")
    (folder / "syntax.py").write_text("class Mine(:\n")
    (folder / "nothing.py").write_text("x = 1\n")
    (folder / "used").mkdir()
    (folder / "used" / "notes.txt").write_text("mine")
    (folder / "infinite.py").write_text(
        "from dataclasses import dataclass\nfrom fedssd import Local\n\n\n@dataclass(frozen=True)\nclass Mine(Local):\n"
        "    def penalty(self, out, batch, target, params, sent, memory):\n        return out.logits.sum(-1) / 0.0\n"
    )
    (folder / "file").write_text("a file")
    return folder


# What is typed, and what the one line must say. {} is the folder of inputs.
BAD = [
    # names
    ("run --method fedsd", "unknown method 'fedsd': did you mean 'fedssd'?"),
    ("run --method fedssd+fedprx", "unknown method 'fedprx': did you mean 'fedprox'?"),
    ("run --method fedssd+fedssd", "fedssd"),
    ("run --method FedSSD", "unknown method 'FedSSD': did you mean 'fedssd'?"),
    ("run --method fednova", "unknown method 'fednova': it is a server half: use --server fednova"),
    ("run --method fedavg,fedssd", "several run with fedssd compare --methods A,B"),
    ("run --method mine.py", "of a file, name the class too: mine.py:MyLoss"),
    ("run --server fedprox", "unknown server half 'fedprox': it is a local half: use --local"),
    ("run --data CIFAR10", "a .csv file (did you mean 'cifar10'?)"),
    ("run --server fedavgg", "unknown server half 'fedavgg': did you mean 'fedavg'?"),
    ("run --data cifar11", "did you mean 'cifar10'?"),
    ("run --model cnnn", "unknown model 'cnnn': did you mean 'cnn'?"),
    ("run --model cnn", "expects images of at least 16×16"),
    ("run --data {}/good.npz --model cnn-small", "expects images"),
    ("run --partition dirichle:0.5", "did you mean 'dirichlet'?"),
    ("run --engine fast", "engine expects one of auto, reference, vectorised, got 'fast'"),
    ("run --device tpu", "device expects auto, cpu or cuda, got 'tpu'"),
    ("run --precision fp8", "precision expects one of"),
    ("run --augment flip", "augment expects one of"),
    ("run --auxiliary-mode public", "auxiliary_mode expects one of heldout, shared"),
    ("methods fedsd", "did you mean 'fedssd'?"),
    ("compare --methods fedavg,fedsd", "unknown method 'fedsd'"),
    ("compare --methods fedavg,fedavg", "twice"),
    ("compare --seeds 0,0", "twice"),
    ("compare --methods ,", "at least one method"),
    ("sweep --grid lr=0.1,0.10", "0.1 and 0.10 are the same value of lr"),
    ("sweep --grid fedssd.m_max=3,1,1e0", "1 and 1e0 are the same value of fedssd.m_max"),
    ("sweep --grid lr=0.1,0.3 --lr 0.2", "lr is given twice: --grid lr=0.1,0.3 and 0.2"),
    ("sweep --grid local=fedavg --method fedssd", "local is given twice: --grid local=fedavg and fedssd"),
    ("sweep --grid fedssd.m_max=1 --fedssd.m-max 2", "fedssd.m_max is given twice: --grid fedssd.m_max=1 and 2"),
    ("sweep --grid evaluate-local=true --no-evaluate-local", "evaluate_local is given twice"),
    # splits
    ("run --partition dirichlet:0", "expected a number δ > 0, got '0'"),
    ("run --partition dirichlet:-1", "expected a number δ > 0, got '-1'"),
    ("run --partition dirichlet:nan", "expected a number δ > 0, got 'nan'"),
    ("run --partition classes:11", "expected k in 1…10, got '11'"),
    ("run --partition classes:two", "expected k in 1…10, got 'two'"),
    ("run --clients 2 --partition classes:1", "expected every class to have a holder"),
    ("run --clients 2000", "2000 clients for 1438"),
    ("partition --clients 0", "expected at least 1 client, got 0"),
    ("partition --seed -5", "expected a seed in"),
    ("partition --auxiliary -1", "expected 0 or more auxiliary samples"),
    ("partition --out {}/file", "which exists"),
    ("partition --out {}/file/split.json", "cannot write the partition"),
    # numbers
    ("run --batch 0", "batch expects a whole number of at least 1, got 0"),
    ("run --rounds 0", "rounds expects a whole number of at least 1, got 0"),
    ("run --rounds 1.5", "rounds expects a whole number, got 1.5"),
    ("run --epochs -1", "epochs expects a whole number of at least 1, got -1"),
    ("run --clients ten", "clients expects a whole number, got 'ten'"),
    ("run --participation 0", "participation expects a number above 0 and at most 1"),
    ("run --participation 1.1", "participation expects a number above 0 and at most 1"),
    ("run --lr 0", "lr expects a number above 0, got 0"),
    ("run --lr nan", "lr expects a finite number above 0, got nan"),
    ("run --momentum 1", "momentum expects a number"),
    ("run --weight-decay -0.1", "weight_decay expects a number"),
    ("run --seed -1", "seed expects a whole number of at least 0"),
    ("run --auxiliary 0", "needs an auxiliary set"),
    ("run --evaluate-every 0", "evaluate_every expects a whole number of at least 1"),
    # options and recipes
    ("run --set fedssd.m_mex=0.1", "method 'fedssd' has no option 'm_mex': did you mean 'm_max'?"),
    ("run --set fedsd.m_max=0.1", "unknown method 'fedsd': did you mean 'fedssd'?"),
    ("run --set fedssd.m_max=big", "fedssd.m_max expects a number, got 'big'"),
    ("run --set fedssd.m_max=-1", "fedssd.m_max expects a finite number that is not negative"),
    ("run --set fedssd.square=round", "fedssd.square expects one of inside, outside, got 'round'"),
    ("run --set m_max=3", "unknown key 'm_max': a method's option is written method.option, such as fedssd.m_max"),
    ("compare --methods fedavg --fedssd.m_max 3", "'fedssd' is not among the methods that run: fedavg"),
    ("compare --methods fedavg,fedssd --fedprox.mu 3", "'fedprox' is not among the methods that run: fedavg, fedssd"),
    ("run --set round=3", "unknown key 'round': did you mean 'rounds'?"),
    ("run --recipe {}/missing.toml", "missing.toml cannot be read"),
    ("run --recipe {}/used", "cannot be read"),
    ("run --recipe {}/broken.toml", "broken.toml is not valid TOML"),
    ("run --recipe {}/binary.toml", "binary.toml is not valid TOML"),
    ("run --recipe {}/deep.toml", "deep.toml is not valid TOML: its lists or tables are nested too deep"),
    (f"run --lr {'[' * 999}", "lr expects a number"),
    ("run --recipe {}/key.toml", "unknown key 'round': did you mean 'rounds'?"),
    ("run --recipe {}/table.toml", "unknown key 'training': a method's options stand in a table [options.training]"),
    ("run --recipe {}/kind.toml", "rounds expects a whole number, got 'many'"),
    ("run --recipe {}/option.toml", "has no option 'm_mex'"),
    # own methods
    ("run --method {}/missing.py:Mine", "does not exist"),
    ("run --method {}/syntax.py:Mine", "syntax.py:1"),
    ("run --method {}/nothing.py:Mine", "expected a subclass of fedssd.Local called 'Mine'"),
    ("run --method {}/infinite.py:Mine", "infinite.py:7: Mine: penalty gives NaN or infinity on finite numbers"),
    # names that are too long for a file
    *((f"{words}{'a' * 300}", "File name too long") for words in ("run --data ", "run --data {}/", "data show ")),
    (f"run --method {'a' * 300}.py:Mine", "File name too long"),
    (f"run --recipe {'a' * 300}", "too long"),
    (f"run --out {'a' * 300}", "too long"),
    ("run --data ~nobody-of-that-name/x.csv", "Could not determine home directory"),
    ("data prepare cifar10 --from ~nobody-of-that-name/x", "Could not determine home directory"),
    # data
    ("run --data {}/missing.npz", "got nothing at"),
    ("run --data {}/nan.npz", "finite"),
    ("run --data {}/negative.npz", "label"),
    ("run --data {}/gap.npz", "class"),
    ("run --data {}/range.npz", "label"),
    ("run --data {}/objects.npz", "pickled objects"),
    ("run --data {}/lengths.npz", "59"),
    ("run --data {}/keys.npz", "got pictures"),
    ("run --data {}/half.npz", "half of one"),
    ("run --data {}/words.csv", "words.csv"),
    ("run --data {}/ragged.csv", "ragged.csv"),
    *(
        (f"{verb} --data {{}}/unlabelled.csv", "got age, bmi, charges: name yours with --label COLUMN")
        for verb in ("run", "compare", "sweep --grid lr=0.1,0.2", "partition", "federation audit")
    ),
    ("data show {}/unlabelled.csv", "got age, bmi, charges: name yours with --label COLUMN"),
    ("run --data {}/unlabelled.csv --label charge", "a column 'charge', as label says"),
    ("run --label charges", "label names a column of a .csv file"),
    ("run --data {}/empty.csv", "empty.csv"),
    ("run --data {}/no_images", "no_images"),
    ("run --data {}/images", "dog"),
    ("run --data cifar10", "fedssd data prepare cifar10"),
    ("data show cifar11", "did you mean 'cifar10'?"),
    ("data prepare digits", "needs no preparing"),
    ("data prepare cifar10 --from {}/missing", "got nothing at"),
    ("data prepare cifar10 --from {}/truncated.tar.gz", "truncated.tar.gz"),
    ("data prepare cifar10 --from {}/tampered.tar.gz", "tampered.tar.gz"),
    ("data prepare cifar10 --from {}/evil.tar.gz", "evil.tar.gz"),
    # output
    ("run --out {}/used", "which is not empty"),
    ("run --out {}/file", "got the file"),
    ("run --out {}/file/below", "is a file; choose another --out"),
    ("run --out /proc/results", "/proc is not writable"),
    ("compare --out {}/used", "which is not empty"),
]


def typed(words: str, inputs: Path) -> list[str]:
    """The words as arguments; a run is made short first, so that one which should fail and does not ends soon."""
    command, *rest = words.format(inputs).split()
    return [command, *(FAST if command == "run" else []), *rest]


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty cache."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "here" / "cache"))
    return tmp_path / "here"


@pytest.mark.parametrize(("words", "message"), BAD, ids=[words[:60] for words, _ in BAD])
def test_one_line_and_nothing_left_behind(
    words: str, message: str, inputs: Path, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything_below(inputs)
    assert main(typed(words, inputs)) == 2
    printed = capsys.readouterr()
    said = [line for line in printed.err.splitlines() if not line.startswith("note: ")]
    assert len(said) == 1, printed.err
    assert said[0].startswith("fedssd")
    assert message in said[0]
    assert printed.out == ""
    assert everything_below(empty) == []
    assert everything_below(inputs) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run --rounds 0", "rounds expects"),
        ("compare --methods fedavg,fedsd", "unknown method 'fedsd'"),
        ("run --roundz 1", "did you mean '--rounds'?"),
        ("data prepare cifar10 --from {}/evil.tar.gz", "evil.tar.gz"),
    ],
)
def test_the_same_through_a_process(words: str, message: str, inputs: Path, empty: Path) -> None:
    command = [sys.executable, "-m", "fedssd", *words.format(inputs).split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(said) == 1
    assert message in said[0]
    assert everything_below(empty) == []
