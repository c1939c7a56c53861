"""Answers for the workflows: the packages that a change touches, and whether a release tag fits the tree.

    python tools/release.py changed --since origin/main    packages changed since then, and all downstream ones, as JSON
    python tools/release.py check treadle-frame-v0.1.0     tag = version = newest changelog heading, else exit status 1

With GITHUB_OUTPUT set, `changed` also writes `packages=<json>` there, and `check` `name=` and `version=`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from distributions import ROOT, Package, read_packages, with_downstream

TAG = re.compile(r"^(?P<name>[a-z][a-z-]*[a-z])-v(?P<version>\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)$")

# Top-level paths outside packages/ -> does a change there concern every package?
CONCERNS_ALL = {
    ".ci": True,
    ".github": True,
    ".gitignore": False,
    "CONTRIBUTING.md": False,
    "LICENSE": True,
    "README.md": False,
    "benchmarks": False,
    "conftest.py": True,
    "docs": False,
    "integration-tests": True,
    "pyproject.toml": True,
    "tools": True,
}


class ReleaseError(Exception):
    """A tag or path does not fit the repository. The message says what was given and what is expected."""


def packages_of(path: str, packages: Mapping[str, Package]) -> Iterable[str]:
    """The packages that a changed path (relative to the root, with slashes) concerns directly."""
    top, _, rest = path.partition("/")
    if top == "packages":
        name = rest.partition("/")[0]
        # A removed package or a stray file: test everything.
        return [name] if name in packages else list(packages)
    if top not in CONCERNS_ALL:
        raise ReleaseError(f"{path}: not a known place; add {top!r} to CONCERNS_ALL in tools/release.py")
    return list(packages) if CONCERNS_ALL[top] else []


def affected_by(paths: Iterable[str], packages: Mapping[str, Package]) -> list[str]:
    """The packages that changed paths touch, and all packages downstream, in dependency order."""
    return with_downstream({name for path in paths for name in packages_of(path, packages)}, packages)


def changed_paths(since: str, root: Path = ROOT) -> list[str]:
    """Paths that differ between HEAD and its merge base with `since`."""
    command = ["git", "-C", str(root), "diff", "--name-only", "--no-renames", f"{since}...HEAD"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise ReleaseError(f"cannot compare with {since!r}: {run.stderr.strip()}")
    return run.stdout.splitlines()


def check_tag(tag: str, packages: Mapping[str, Package]) -> tuple[str, str]:
    """(distribution, version) of a release tag. Raises ReleaseError if the tag does not fit the tree."""
    found = TAG.match(tag)
    if found is None:
        raise ReleaseError(f"tag {tag!r} is not of the form <distribution>-v<version>, such as treadle-frame-v0.1.0")
    name, version = found["name"], found["version"]
    if name not in packages:
        raise ReleaseError(f"tag {tag!r} names {name!r}, which is none of {', '.join(packages)}")
    package = packages[name]
    if package.version() != version:
        raise ReleaseError(f"tag {tag!r} says {version}, {package.module}/__about__.py says {package.version()}")
    newest = next(iter(package.changelog_versions()), None)
    if newest != version:
        raise ReleaseError(f"tag {tag!r} says {version}, the newest heading of {name}/CHANGELOG.md says {newest}")
    return name, version


def write_outputs(**values: str) -> None:
    """Pass values to the following steps of a workflow, if this is one."""
    target = os.environ.get("GITHUB_OUTPUT")
    if target:
        with open(target, "a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    changed = commands.add_parser("changed", help="packages changed since a commit, and all downstream")
    changed.add_argument("--since", metavar="COMMIT", help="without it: all packages")
    check = commands.add_parser("check", help="tag = version = newest changelog heading")
    check.add_argument("tag")
    options = parser.parse_args(arguments)
    packages = read_packages()
    try:
        if options.command == "check":
            name, version = check_tag(options.tag, packages)
            print(f"{name} {version}: tag, version and changelog agree")
            write_outputs(name=name, version=version)
        else:
            names = affected_by(changed_paths(options.since), packages) if options.since else list(packages)
            print(json.dumps(names))
            write_outputs(packages=json.dumps(names))
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
