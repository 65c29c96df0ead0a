"""Long trials say which sources their results speak of, and are run again when those change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import trials

TABLE = """
[trial.short]
says = "a trial"
command = ["python", "-c", "open('page.md', 'w').write('found'); print('one', 'two')"]
sources = ["src/*.py"]
without = ["src/left_out.py"]
results = ["page.md"]
minutes = 0.1

[trial.broken]
says = "a trial that fails"
command = ["python", "-c", "raise SystemExit(3)"]
sources = ["src/*.py"]
minutes = 0.1

[gpu]
records = ["gpu-*.json"]
unnamed = []
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of two trials."""
    for folder in ("scripts", "src", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scripts" / "trials.toml").write_text(TABLE)
    for name in ("src/one.py", "src/left_out.py", "docs/page.md"):
        (tmp_path / name).write_text("1\n")
    (tmp_path / "gpu-a.json").write_text('{"commit": "abc"}')
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def short(clone: Path) -> trials.Trial:
    """The trial that goes well."""
    return next(trial for trial in trials.trials(clone) if trial.name == "short")


def test_a_trial_is_stale_until_it_ran_and_when_a_source_of_it_changes(clone: Path) -> None:
    """A stamp speaks of its sources: another text makes it stale, the old one fresh again."""
    assert trials.count(clone) == "trials: 0 fresh, 2 stale: short, broken"
    assert trials.run(short(clone), clone)
    assert trials.count(clone) == "trials: 1 fresh, 1 stale: broken"
    stamp = json.loads((clone / "docs/trials/short.json").read_text())
    assert stamp["report"] == ["one two"]
    assert stamp["files"] == 1
    source = clone / "src" / "one.py"
    source.write_text("2\n")
    assert short(clone).stale(clone) == "sources changed"
    source.write_text("1\n")
    assert short(clone).stale(clone) == ""


def test_what_a_trial_does_not_speak_of_leaves_it_fresh(clone: Path) -> None:
    """Documentation, sources left out and files git does not know are no sources."""
    assert trials.run(short(clone), clone)
    for name in ("docs/page.md", "src/left_out.py", "src/untracked.py"):
        (clone / name).write_text("another text\n")
    assert short(clone).stale(clone) == ""
    subprocess.run(["git", "add", "src/untracked.py"], cwd=clone, check=True)
    assert short(clone).stale(clone) == "sources changed"


def test_a_result_changed_by_hand_is_stale(clone: Path) -> None:
    """What a trial wrote is stamped too."""
    assert trials.run(short(clone), clone)
    (clone / "page.md").write_text("better")
    assert short(clone).stale(clone) == "page.md changed by hand"


def test_a_trial_that_fails_leaves_no_stamp(clone: Path) -> None:
    """A failed trial stays stale, and the command's exit code says so."""
    (broken,) = (trial for trial in trials.trials(clone) if trial.name == "broken")
    assert not trials.run(broken, clone)
    assert broken.stale(clone) == "never run"


def test_a_name_that_is_no_trial_is_refused(clone: Path) -> None:
    """The error names the ones there are."""
    with pytest.raises(SystemExit, match="fast: no trial; there are short, broken"):
        trials.chosen_trials(["fast"], clone)


def test_make_test_counts_the_trials_of_this_clone() -> None:
    """`--count` is one line and no failure, whatever is stale."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.trials", "--count"],
        cwd=trials.CLONE, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trials: ")
    assert done.stdout.count("\n") == 1
    assert "scripts.trials --count" in (trials.CLONE / "Makefile").read_text()


def test_every_trial_of_this_clone_speaks_of_sources() -> None:
    """No glob is empty, and no trial but the pages' own depends on a document."""
    known = trials.trials(trials.CLONE)
    assert known
    for trial in known:
        for glob in (*trial.sources, *trial.without):
            assert trials.tracked(trials.CLONE, (glob,)), f"{trial.name}: {glob} matches nothing"
        assert not [name for name in trial.files(trials.CLONE) if name.endswith(".md")]


def test_a_gpu_record_names_its_commit() -> None:
    """Only the records made before the rule do not, and they are listed by name."""
    unnamed = {Path(n).name for n, c in trials.gpu_records(trials.CLONE).items() if not c}
    assert unnamed == set(trials.table(trials.CLONE)["gpu"]["unnamed"])
