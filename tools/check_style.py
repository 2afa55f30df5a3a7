"""Check the project's conventions that ruff, mypy and import-linter don't cover.

    python tools/check_style.py                         run all checks; exit with 1 if there are problems
    python tools/check_style.py --commits main..HEAD    check the commit subjects of this range instead of the default
    python tools/check_style.py --message FILE          check only a commit message (for a commit-msg hook)

Needs nothing but the standard library. Commit subjects are skipped where git or its history is missing, as in a source
archive or a shallow clone.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"
TEMPLATES = PACKAGE / "web" / "templates"
PYTHON_FOLDERS = ("src", "benchmarks", "examples", "tests", "tools")

MAX_FILE_LINES = 800
MAX_SUBJECT_LENGTH = 72
FIRST_CHECKED_AFTER = "1bb52aa3cfe8ec2333c355da91ac8fbff01079eb"
"""The last commit before subjects were checked."""

SUBJECT = re.compile(r"^(?:(?:fixup|squash|amend)! )?[a-z][a-z0-9 ,./_-]*: \S.*[^.\s]$")
GENERATED_SUBJECT = re.compile(r"^(Merge|Revert) ")
NOT_IMPERATIVE = re.compile(
    r"^(?:added|adds|adding|changed|changes|changing|fixed|fixes|fixing|made|makes|making|moved|moves|moving"
    r"|removed|removes|removing|renamed|renames|renaming|updated|updates|updating|used|uses|using)\b",
    re.IGNORECASE,
)

METAPHORS = frozenset({
    "clerk", "clockwork", "conductor", "crew", "crews", "crowd", "desk", "family", "house", "houses", "leash",
    "lookout", "meeting", "mirror", "past", "player", "score", "stage", "story", "troupe", "warden", "world",
})  # fmt: skip
GERUNDS_ALLOWED = frozenset({"framing", "listing", "logging", "testing", "timing", "tracing", "typing"})

VAGUE_CONSTANTS = frozenset({
    "CONTENDED", "ENOUGH", "FAR", "FEW", "FEWEST", "LATEST", "LONGEST", "LOOK", "MOST", "OFTEN", "QUIET_TURNS",
    "RARELY", "SHORTEST", "SOON", "SOONEST",
})  # fmt: skip
QUANTITY = re.compile(
    r"(?:^|_)(?:AGE|BACKOFF|DEADLINE|DELAY|DURATION|GRACE|INTERVAL|PATIENCE|PAUSE|PERIOD|TIMEOUT|TTL|BUFFER)S?(?:_|$)"
)
UNIT = re.compile(r"_(?:S|MS|US|NS|SECONDS|MINUTES|HOURS|DAYS|BYTES|KB|MB|GB|FACTOR|RATIO|SHARE|COUNT|ROWS|TICKS)$")

NOUNS = (
    "(?:runs|jobs|workers|attempts|steps|tasks|sessions|events|messages|schedules|nodes|queues|times|children|checkpoints|"
    "permits|starts|fields|crashes|points|gates|waits|slots|threads|processes|requests|files|items|entries)"
)
PLURAL_AFTER_NUMBER = re.compile(rf"^ {NOUNS}\b")
PLURAL_IN_TEXT = re.compile(rf"\w\(e?s\)|\b1 {NOUNS}\b|%[ds] {NOUNS}\b")
PLURAL_IN_TEMPLATE = re.compile(rf"(?<!\| capitalize )\}}\}} {NOUNS}\b|\w\(e?s\)")

INTERFACE_WORDS = (
    "About it", "All that fit", "Graphs that go on", "How long", "Kept until", "Let it fail", "Made", "More about it",
    "Somebody", "Text in the error", "What happened", "Who are you", "Why it is where it is", "its parent", "95 of 100",
    "code error", "Can't be done",
)  # fmt: skip
INTERFACE_WORD = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, INTERFACE_WORDS))})(?![\w-])")
TEMPLATE_CODE = re.compile(r"\{[%#].*?[%#]\}|\{\{.*?\}\}|<[^>]*>", re.DOTALL)

BRITISH_OR_ODD = re.compile(
    r"\b(?:behaviours?|colours?|coloured|favours?|favourite|honours?|neighbours?|neighbouring|labelled|modelled|travelled"
    r"|analyse[ds]?|catalogue|centre|licence|(?:initial|normal|optim|organ|recogn|serial|synchron)is(?:e[ds]?|ing|ation)"
    r"|for ever|whoever|whomever|reckon(?:s|ed|ing)?|hitherto)\b",
    re.IGNORECASE,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the project's conventions.")
    parser.add_argument("--commits", default=f"{FIRST_CHECKED_AFTER}..HEAD", help="range of commits to check")
    parser.add_argument("--message", type=Path, metavar="FILE", help="check only this commit message")
    options = parser.parse_args()
    if options.message:
        return report("commit subjects", list(check_subject(options.message.read_text().partition("\n")[0])))
    checks: dict[str, Callable[[], Iterable[str]]] = {
        "commit subjects": lambda: check_commit_subjects(options.commits),
        "file length": check_file_length,
        "duplicate classes": check_duplicate_classes,
        "module names": check_module_names,
        "constants": check_constants,
        "plurals": check_plurals,
        "interface words": check_interface_words,
        "spelling": check_spelling,
    }
    failed = 0
    for name, check in checks.items():
        failed |= report(name, list(check()))
    return failed


def report(name: str, problems: list[str]) -> int:
    for problem in problems:
        print(f"{name}: {problem}")
    return 1 if problems else 0


# Commits


def check_commit_subjects(commits: str) -> Iterator[str]:
    try:
        log = subprocess.run(
            ["git", "log", "--no-merges", "--format=%h %s", commits, "--"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return
    if log.returncode != 0:
        if _has_whole_history():
            yield f"git can't list {commits}: {log.stderr.strip()}"
        return
    for line in log.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        for problem in check_subject(subject):
            yield f"{commit}: {problem}"


def _has_whole_history() -> bool:
    """Return whether this is a clone with all commits, in which every range must exist."""
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return shallow.stdout.strip() == "false"


def check_subject(subject: str) -> Iterator[str]:
    if GENERATED_SUBJECT.match(subject):
        return
    if len(subject) > MAX_SUBJECT_LENGTH:
        yield f"{len(subject)} characters, at most {MAX_SUBJECT_LENGTH}: {subject}"
    if not SUBJECT.match(subject):
        yield f"must read 'area: imperative summary' without a final period: {subject}"
    elif NOT_IMPERATIVE.match(subject.partition(": ")[2]):
        yield f"use the imperative ('add', not 'added' or 'adds'): {subject}"


# Files and names


def check_file_length() -> Iterator[str]:
    for path in python_files():
        lines = len(path.read_text().splitlines())
        if lines > MAX_FILE_LINES:
            yield f"{shown(path)} has {lines} lines, at most {MAX_FILE_LINES}"


def check_duplicate_classes() -> Iterator[str]:
    """A class name means one thing in the package; protocols may share the name of their implementation."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in package_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not is_protocol(node):
                places[node.name].append(f"{shown(path)}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"{name}: {', '.join(found)}"


def is_protocol(node: ast.ClassDef) -> bool:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)


def check_module_names() -> Iterator[str]:
    for path in [path for folder in (PACKAGE, ROOT / "benchmarks", ROOT / "tests") for path in folder.rglob("*")]:
        if path.suffix not in (".py", ".sql") or "migrations" in path.parts:  # Databases store the names of migrations.
            continue
        if path.name.startswith("test_"):  # A test may be named after an activity.
            continue
        words = path.stem.split("_")
        if METAPHORS.intersection(words):
            yield f"{shown(path)}: name it by its role, not by a metaphor"
        elif words[-1].endswith("ing") and words[-1] not in GERUNDS_ALLOWED:
            yield f"{shown(path)}: name it by a noun, not by a gerund"


def check_constants() -> Iterator[str]:
    """A numeric constant for a time or a size ends with its unit."""
    for path, tree in package_trees():
        for target, value, line in module_assignments(tree):
            name = target.lstrip("_")
            if not name.isupper():
                continue
            if name in VAGUE_CONSTANTS:
                yield f"{shown(path)}:{line}: {name} says neither what nor in which unit"
            elif needs_unit(name) and is_numeric(value):
                yield f"{shown(path)}:{line}: {name} needs a unit, such as _S or _BYTES"


def module_assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None, int]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((name.id, node.value, node.lineno) for name in node.targets if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value, node.lineno


def needs_unit(name: str) -> bool:
    return bool(QUANTITY.search(name)) and "_PER_" not in name and not UNIT.search(name)


def is_numeric(value: ast.expr | None) -> bool:
    """Tell whether an expression consists of numbers only."""
    if isinstance(value, ast.BinOp):
        return is_numeric(value.left) and is_numeric(value.right)
    if isinstance(value, ast.UnaryOp):
        return is_numeric(value.operand)
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float) and value.value is not True


# Words


def check_plurals() -> Iterator[str]:
    """Messages say "1 run", not "1 runs" or "1 run(s)"."""
    for path, tree in package_trees():
        for number, words in plural_problems(tree):
            yield f"{shown(path)}:{number}: handle the singular: {words.strip()[:60]!r}"
    for path in sorted(TEMPLATES.rglob("*.html")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if PLURAL_IN_TEMPLATE.search(line):
                yield f"{shown(path)}:{number}: handle the singular: {line.strip()[:60]!r}"


def plural_problems(tree: ast.Module) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    # A conditional expression handles the singular itself: "1 run" if n == 1 else f"{n} runs". So does "if n > 1:".
    guards = (node for node in nodes if isinstance(node, ast.IfExp) or is_several(node))
    guarded = {id(child) for node in guards for child in ast.walk(node)}
    for node in nodes:
        if id(node) in docstrings or id(node) in guarded:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PLURAL_IN_TEXT.search(node.value):
            yield node.lineno, node.value
        if isinstance(node, ast.JoinedStr):
            for number, text in zip(node.values, node.values[1:], strict=False):
                words = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
                is_number = isinstance(number, ast.FormattedValue) and not is_constant_name(number.value)
                if is_number and PLURAL_AFTER_NUMBER.match(words):
                    yield node.lineno, f"…{words}"


def is_several(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "> 1" in ast.unparse(node.test)


def is_constant_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.isupper()


def check_interface_words() -> Iterator[str]:
    """The dashboard uses the words that other dashboards use."""
    for path in sorted(TEMPLATES.rglob("*.html")):
        text = TEMPLATE_CODE.sub(lambda code: "\n" * code.group().count("\n"), path.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            for word in INTERFACE_WORD.findall(line):
                yield f"{shown(path)}:{number}: {word!r}"


def check_spelling() -> Iterator[str]:
    """Prose is American English and free of the words that once made it hard to read."""
    folders = [PACKAGE, ROOT / "benchmarks", ROOT / "docs", ROOT / "examples"]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".sql", ".md", ".html")]
    for path in sorted([*files, *ROOT.glob("*.md"), ROOT / "dev"]):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for word in BRITISH_OR_ODD.findall(line):
                yield f"{shown(path)}:{number}: {word!r}"


# Helpers


def python_files() -> list[Path]:
    return sorted([*(path for folder in PYTHON_FOLDERS for path in (ROOT / folder).rglob("*.py")), ROOT / "dev"])


def package_trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
